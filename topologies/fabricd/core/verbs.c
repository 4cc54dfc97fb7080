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

int verbs_post_send(void *shared, uint32_t slot, const struct verbs_send_wr *wr, uint32_t count)
{
	struct verbs_queue_pair *qp = queue_pair(shared, slot);
	uint32_t state = qp ? __atomic_load_n(&qp->state, __ATOMIC_ACQUIRE) : IBV_QPS_RESET;

	if (state != IBV_QPS_RTS && state != IBV_QPS_ERR)
		return -EINVAL;
	uint32_t producer = qp->send_producer;
	uint32_t used = producer - __atomic_load_n(&qp->send_consumer, __ATOMIC_ACQUIRE);
	uint32_t room = used < VERBS_SEND_DEPTH ? VERBS_SEND_DEPTH - used : 0;
	if (room == 0 && count > 0)
		return -ENOMEM;
	uint32_t taken = count < room ? count : room;
	for (uint32_t i = 0; i < taken; i++)
		qp->send[(producer + i) % VERBS_SEND_DEPTH] = wr[i];
	__atomic_store_n(&qp->send_producer, producer + taken, __ATOMIC_RELEASE);
	ring_doorbell(shared, slot);
	return (int)taken;
}

int verbs_post_recv(void *shared, uint32_t slot, const struct verbs_recv_wr *wr, uint32_t count)
{
	struct verbs_queue_pair *qp = queue_pair(shared, slot);

	if (!qp || __atomic_load_n(&qp->state, __ATOMIC_ACQUIRE) == IBV_QPS_RESET)
		return -EINVAL;
	uint32_t producer = qp->recv_producer;
	uint32_t used = producer - __atomic_load_n(&qp->recv_consumer, __ATOMIC_ACQUIRE);
	uint32_t room = used < VERBS_RECV_DEPTH ? VERBS_RECV_DEPTH - used : 0;
	if (room == 0 && count > 0)
		return -ENOMEM;
	uint32_t taken = count < room ? count : room;
	for (uint32_t i = 0; i < taken; i++)
		qp->recv[(producer + i) % VERBS_RECV_DEPTH] = wr[i];
	__atomic_store_n(&qp->recv_producer, producer + taken, __ATOMIC_RELEASE);
	ring_doorbell(shared, slot); /* a queue pair in error flushes what is posted late */
	return (int)taken;
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
