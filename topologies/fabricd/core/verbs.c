/*
 * The agent's half of the shared rings.  Runs in the processes of hosts, never in fabricd; owns
 * the producer indices of work queues and the consumer indices of completion queues.
 */
#include "verbs.h"

#include <errno.h>
#include <string.h>

static struct verbs_queue_pair *queue_pair(void *shared, uint32_t slot)
{
	struct verbs_header *header = shared;

	if (slot >= VERBS_MAX_QPS)
		return NULL;
	return (struct verbs_queue_pair *)((uint8_t *)shared + header->qp_offset) + slot;
}

static struct verbs_completion_queue *completion_queue(void *shared, uint32_t cq)
{
	struct verbs_header *header = shared;

	if (cq >= VERBS_MAX_CQS)
		return NULL;
	return (struct verbs_completion_queue *)((uint8_t *)shared + header->cq_offset) + cq;
}

static void ring_doorbell(void *shared, uint32_t slot)
{
	struct verbs_header *header = shared;

	__atomic_fetch_or(&header->doorbell, 1ull << slot, __ATOMIC_RELEASE);
}

int verbs_check(const void *shared, uint64_t bytes)
{
	const struct verbs_header *header = shared;

	if (bytes < sizeof *header || header->magic != VERBS_MAGIC || header->version != VERBS_VERSION)
		return -EPROTO;
	return header->bytes > bytes ? -ENODATA : 0;
}

struct work_queue {
	uint32_t *producer;
	const uint32_t *consumer;
	void *entries;
	uint32_t depth, entry_bytes;
};

/* A queue pair in error takes work, too, and flushes it: hence the doorbell in every case. */
static int post(void *shared, uint32_t slot, struct work_queue queue, const void *requests, uint32_t count)
{
	uint32_t producer = *queue.producer;
	uint32_t used = producer - __atomic_load_n(queue.consumer, __ATOMIC_ACQUIRE);
	uint32_t room = used < queue.depth ? queue.depth - used : 0;
	uint32_t taken = count < room ? count : room;

	if (room == 0 && count > 0)
		return -ENOMEM;
	for (uint32_t i = 0; i < taken; i++)
		memcpy((uint8_t *)queue.entries + (size_t)((producer + i) % queue.depth) * queue.entry_bytes,
		       (const uint8_t *)requests + (size_t)i * queue.entry_bytes, queue.entry_bytes);
	__atomic_store_n(queue.producer, producer + taken, __ATOMIC_RELEASE);
	ring_doorbell(shared, slot);
	return (int)taken;
}

int verbs_post_send(void *shared, uint32_t slot, const struct verbs_send_wr *wr, uint32_t count)
{
	struct verbs_queue_pair *qp = queue_pair(shared, slot);
	uint32_t state = qp ? __atomic_load_n(&qp->state, __ATOMIC_ACQUIRE) : IBV_QPS_RESET;

	if (state != IBV_QPS_RTS && state != IBV_QPS_ERR)
		return -EINVAL;
	return post(shared, slot, (struct work_queue){ &qp->send_producer, &qp->send_consumer, qp->send, VERBS_SEND_DEPTH, sizeof *wr },
	            wr, count);
}

int verbs_post_recv(void *shared, uint32_t slot, const struct verbs_recv_wr *wr, uint32_t count)
{
	struct verbs_queue_pair *qp = queue_pair(shared, slot);

	if (!qp || __atomic_load_n(&qp->state, __ATOMIC_ACQUIRE) == IBV_QPS_RESET)
		return -EINVAL;
	return post(shared, slot, (struct work_queue){ &qp->recv_producer, &qp->recv_consumer, qp->recv, VERBS_RECV_DEPTH, sizeof *wr },
	            wr, count);
}

int verbs_poll_cq(void *shared, uint32_t cq, struct verbs_wc *wc, uint32_t count)
{
	struct verbs_completion_queue *queue = completion_queue(shared, cq);

	if (!queue || queue->depth == 0 || queue->depth > VERBS_CQ_DEPTH)
		return -EINVAL;
	uint32_t consumer = queue->consumer;
	uint32_t ready = __atomic_load_n(&queue->producer, __ATOMIC_ACQUIRE) - consumer;
	if (ready == 0)
		return __atomic_load_n(&queue->overrun, __ATOMIC_ACQUIRE) ? -EOVERFLOW : 0;
	uint32_t taken = count < ready ? count : ready;
	for (uint32_t i = 0; i < taken; i++)
		wc[i] = queue->entry[(consumer + i) & (queue->depth - 1)];
	__atomic_store_n(&queue->consumer, consumer + taken, __ATOMIC_RELEASE);
	return (int)taken;
}

int verbs_req_notify_cq(void *shared, uint32_t cq)
{
	struct verbs_completion_queue *queue = completion_queue(shared, cq);

	if (!queue)
		return -EINVAL;
	__atomic_store_n(&queue->armed, 1, __ATOMIC_SEQ_CST);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n(&queue->producer, __ATOMIC_ACQUIRE) != queue->consumer ||
	       __atomic_load_n(&queue->overrun, __ATOMIC_ACQUIRE);
}
