/*
 * The NIC's clockwork: start, receive, schedule, complete, fail.
 *
 * Pacing.  tx_free_ns is when the wire is free again, the same sum that the port in front of the
 * NIC makes: max(previous, now) plus the frame's wire time.  A frame is emitted as long as the
 * wire is busy for no more than one MTU time from now, so at most two frames stand in the port's queue,
 * and a tick may come up to one MTU time late before the wire falls idle.  Time in which it was idle is lost, as on
 * any wire: catching up would only build a queue.
 *
 * Order.  CNPs go first, then ACKs and NAKs; then queue pairs take turns, one packet each.  A queue pair
 * under congestion control waits for its own rate, too (rnic_congestion.c), and what belongs to a
 * paused traffic class waits for the end of the pause.
 */
#include "rnic_internal.h"

#include <errno.h>
#include <string.h>

#include "icrc.h"

size_t rnic_bytes(void)
{
	return sizeof(struct rnic);
}

static uint64_t arena_offset(void)
{
	uint64_t rings = VERBS_PAGE_BYTES + VERBS_MAX_QPS * sizeof(struct verbs_queue_pair) +
	                 VERBS_MAX_CQS * sizeof(struct verbs_completion_queue);

	return (rings + VERBS_PAGE_BYTES - 1) / VERBS_PAGE_BYTES * VERBS_PAGE_BYTES;
}

size_t rnic_shared_bytes(uint64_t arena_bytes)
{
	return (size_t)(arena_offset() + arena_bytes);
}

static int valid(const struct rnic_config *config)
{
	return config->mtu_bytes >= RNIC_MIN_MTU && config->mtu_bytes <= RNIC_MAX_MTU && config->mtu_bytes % 4 == 0 &&
	       config->dscp < 64 && config->ack_dscp < 64 && config->cnp_dscp < 64 && config->rate_bps > 0 && config->slowdown >= 0 && config->arena_bytes > 0 &&
	       config->arena_bytes % VERBS_PAGE_BYTES == 0 && config->arena_bytes <= 1ull << 36;
}

static int set_classes(struct rnic *nic, const uint8_t *dscp_class)
{
	if (!dscp_class) {
		nic->dscp_class[26] = 3;
		nic->dscp_class[RNIC_CNP_DSCP] = 6;
		return 1;
	}
	for (uint32_t i = 0; i < 64; i++)
		if (dscp_class[i] >= MAX_CLASSES)
			return 0;
	memcpy(nic->dscp_class, dscp_class, sizeof nic->dscp_class);
	return 1;
}

static void lay_out(struct rnic *nic, void *shared)
{
	struct verbs_header *header = shared;

	nic->shared = header;
	header->version = VERBS_VERSION;
	header->nic = nic->config.index;
	header->mtu_bytes = nic->config.mtu_bytes;
	header->bytes = rnic_shared_bytes(nic->config.arena_bytes);
	header->qp_offset = VERBS_PAGE_BYTES;
	header->cq_offset = header->qp_offset + VERBS_MAX_QPS * sizeof(struct verbs_queue_pair);
	header->arena_offset = arena_offset();
	header->arena_bytes = nic->config.arena_bytes;
	header->arena_address = (uint64_t)(nic->config.index + 1) << 36;
	nic->arena = (uint8_t *)shared + header->arena_offset;
	for (uint32_t i = 0; i < VERBS_MAX_QPS; i++) {
		nic->qp[i].ring = (struct verbs_queue_pair *)((uint8_t *)shared + header->qp_offset) + i;
		nic->qp[i].sq = nic->sq[i];
		nic->qp[i].slot = i;
	}
	for (uint32_t i = 0; i < VERBS_MAX_CQS; i++)
		nic->cq[i].ring = (struct verbs_completion_queue *)((uint8_t *)shared + header->cq_offset) + i;
	__atomic_store_n(&header->magic, VERBS_MAGIC, __ATOMIC_RELEASE); /* last: readers check it first */
}

int rnic_init(struct rnic *nic, const struct rnic_config *config, void *shared, struct telemetry *telemetry)
{
	if (!valid(config) || !set_classes(nic, config->dscp_class))
		return -EINVAL;
	nic->config = *config;
	nic->telemetry = telemetry;
	nic->count = &telemetry->nic[config->index];
	nic->ns_per_byte = 8e9 / config->rate_bps;
	uint32_t largest = HEADER_BYTES + RETH_BYTES + IMMDT_BYTES + config->mtu_bytes + ICRC_BYTES + WIRE_EXTRA_BYTES;
	nic->mtu_time_ns = (int64_t)(largest * nic->ns_per_byte) + 1;
	nic->next_timer_ns = NEVER;
	lay_out(nic, shared);
	return 0;
}

struct rnic_qp *rnic_find_qp(struct rnic *nic, uint32_t qp_num)
{
	struct rnic_qp *qp = &nic->qp[(qp_num - RNIC_FIRST_QP) % VERBS_MAX_QPS];

	return qp->used && qp->qp_num == qp_num ? qp : NULL;
}

void rnic_trace_at(struct rnic *nic, const struct rnic_qp *qp, int64_t t_ns, uint8_t kind, uint8_t reason, uint64_t psn,
                   uint32_t bytes, int64_t wait_ns)
{
	struct trace_record record = {
		.t_ns = t_ns,
		.wait_ns = wait_ns,
		.flow = UINT32_MAX, /* the reader finds it by port and queue pair */
		.psn = (uint32_t)psn & PSN_MASK,
		.bytes = bytes,
		.arg = qp->qp_num,
		.port = (uint16_t)nic->config.port,
		.kind = kind,
		.reason = reason,
	};

	telemetry_trace(nic->telemetry, &record);
}

void rnic_trace(struct rnic *nic, const struct rnic_qp *qp, uint8_t kind, uint8_t reason, uint64_t psn, uint32_t bytes,
                int64_t wait_ns)
{
	rnic_trace_at(nic, qp, nic->now_ns, kind, reason, psn, bytes, wait_ns);
}

static void notify(struct rnic *nic, struct verbs_completion_queue *ring)
{
	/* The producer index must be out before `armed` is looked at; see verbs.h. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&ring->armed, __ATOMIC_RELAXED) && __atomic_exchange_n(&ring->armed, 0, __ATOMIC_ACQ_REL))
		nic->event = 1;
}

/* A queue pair whose completion was lost must not go on as if nothing had happened. */
static void overrun(struct rnic *nic, struct rnic_qp *qp, struct rnic_cq *cq)
{
	nic->count->cq_overruns++;
	__atomic_store_n(&cq->ring->overrun, 1, __ATOMIC_RELEASE);
	notify(nic, cq->ring);
	rnic_fail_qp(nic, qp, IBV_WC_WR_FLUSH_ERR);
}

void rnic_complete(struct rnic *nic, struct rnic_qp *qp, uint32_t cq_index, const struct verbs_wc *wc)
{
	struct rnic_cq *cq = &nic->cq[cq_index];
	uint32_t used = cq->producer - __atomic_load_n(&cq->ring->consumer, __ATOMIC_ACQUIRE);

	if (used >= cq->depth) {
		overrun(nic, qp, cq);
		return;
	}
	struct verbs_wc *entry = &cq->ring->entry[cq->producer & (cq->depth - 1)];
	*entry = *wc;
	entry->qp_num = qp->qp_num;
	entry->timestamp_ns = nic->now_ns;
	__atomic_store_n(&cq->ring->producer, ++cq->producer, __ATOMIC_RELEASE);
	notify(nic, cq->ring);
}

void rnic_set_state(struct rnic_qp *qp, uint32_t state)
{
	qp->state = state;
	__atomic_store_n(&qp->ring->state, state, __ATOMIC_RELEASE);
}

static void complete_with_error(struct rnic *nic, struct rnic_qp *qp, uint32_t cq, uint64_t wr_id, uint32_t status)
{
	struct verbs_wc wc = {.wr_id = wr_id, .status = status};

	rnic_complete(nic, qp, cq, &wc);
}

static void flush_send(struct rnic *nic, struct rnic_qp *qp, uint32_t status)
{
	uint64_t wr_id = qp->done == qp->fetched ? qp->ring->send[qp->done % VERBS_SEND_DEPTH].wr_id
	                                         : qp->sq[qp->done % VERBS_SEND_DEPTH].wr.wr_id;

	if (qp->done == qp->fetched)
		qp->fetched++;
	__atomic_store_n(&qp->ring->send_consumer, ++qp->done, __ATOMIC_RELEASE);
	complete_with_error(nic, qp, qp->send_cq, wr_id, status);
}

/* Everything posted completes as flushed.  An index that makes no sense counts as nothing posted. */
void rnic_flush(struct rnic *nic, struct rnic_qp *qp)
{
	uint32_t sends = __atomic_load_n(&qp->ring->send_producer, __ATOMIC_ACQUIRE) - qp->done;
	uint32_t receives = __atomic_load_n(&qp->ring->recv_producer, __ATOMIC_ACQUIRE) - qp->recv_consumer;

	if (sends > VERBS_SEND_DEPTH)
		sends = qp->fetched - qp->done;
	while (sends--)
		flush_send(nic, qp, IBV_WC_WR_FLUSH_ERR);
	if (receives > VERBS_RECV_DEPTH)
		return;
	while (receives--) {
		uint64_t wr_id = qp->ring->recv[qp->recv_consumer % VERBS_RECV_DEPTH].wr_id;
		__atomic_store_n(&qp->ring->recv_consumer, ++qp->recv_consumer, __ATOMIC_RELEASE);
		complete_with_error(nic, qp, qp->recv_cq, wr_id, IBV_WC_WR_FLUSH_ERR);
	}
}

/* Returns 0 when the queue pair was in error already. */
static int enter_error(struct rnic *nic, struct rnic_qp *qp, uint32_t status)
{
	uint64_t bit = 1ull << qp->slot;

	if (qp->state == IBV_QPS_ERR)
		return 0;
	rnic_set_state(qp, IBV_QPS_ERR);
	nic->ready &= ~bit;
	nic->timed &= ~bit;
	nic->count->qp_errors++;
	rnic_trace(nic, qp, TRACE_QP_ERROR, (uint8_t)status, qp->una, 0, 0);
	return 1;
}

void rnic_fail_qp(struct rnic *nic, struct rnic_qp *qp, uint32_t status)
{
	if (enter_error(nic, qp, status))
		rnic_flush(nic, qp);
}

void rnic_fail_send(struct rnic *nic, struct rnic_qp *qp, uint32_t status)
{
	if (!enter_error(nic, qp, status))
		return;
	if (qp->done != qp->fetched)
		flush_send(nic, qp, status);
	rnic_flush(nic, qp);
}

void rnic_timer(struct rnic *nic, struct rnic_qp *qp, int64_t at_ns)
{
	nic->timed |= 1ull << qp->slot;
	if (at_ns < nic->next_timer_ns)
		nic->next_timer_ns = at_ns;
}

/* A timer that was put off leaves next_timer_ns too early: one look for nothing, cheaper than keeping it exact. */
static void run_timers(struct rnic *nic)
{
	nic->next_timer_ns = NEVER;
	for (uint64_t left = nic->timed; left; left &= left - 1) {
		struct rnic_qp *qp = &nic->qp[__builtin_ctzll(left)];
		nic->timed &= ~(1ull << qp->slot);
		if (qp->wake_ns <= nic->now_ns) {
			qp->wake_ns = NEVER;
			nic->ready |= 1ull << qp->slot;
		}
		if (qp->deadline_ns <= nic->now_ns) {
			qp->deadline_ns = NEVER;
			requester_timeout(nic, qp);
		}
		congestion_timer(nic, qp);
		int64_t next_ns = qp->cnp_due_ns;
		if (qp->state == IBV_QPS_RTS && qp->wake_ns < next_ns)
			next_ns = qp->wake_ns;
		if (qp->state == IBV_QPS_RTS && qp->deadline_ns < next_ns)
			next_ns = qp->deadline_ns;
		if (next_ns != NEVER)
			rnic_timer(nic, qp, next_ns);
	}
}

static void take_doorbells(struct rnic *nic)
{
	uint64_t rung = __atomic_exchange_n(&nic->shared->doorbell, 0, __ATOMIC_ACQUIRE);

	for (; rung; rung &= rung - 1) {
		struct rnic_qp *qp = &nic->qp[__builtin_ctzll(rung)];
		if (qp->used && qp->state == IBV_QPS_RTS)
			nic->ready |= 1ull << qp->slot;
		else if (qp->used && qp->state == IBV_QPS_ERR)
			rnic_flush(nic, qp);
	}
}

/* The member of `set` whose turn it is after `last`. */
static uint32_t next_in_turn(uint64_t set, uint32_t last)
{
	uint64_t behind = last < 63 ? set & ~0ull << (last + 1) : 0;

	return (uint32_t)__builtin_ctzll(behind ? behind : set);
}

/* Which queue pairs may send, and what goes first, is decided here and nowhere else. */
static uint32_t next_frame(struct rnic *nic, int64_t start_ns)
{
	uint64_t set;

	if (nic->notifying && !nic->cnp_paused) {
		nic->last_notifier = next_in_turn(nic->notifying, nic->last_notifier);
		return congestion_reply(nic, &nic->qp[nic->last_notifier], start_ns);
	}
	if ((set = nic->replying & ~nic->ack_paused)) {
		nic->last_replier = next_in_turn(set, nic->last_replier);
		return responder_reply(nic, &nic->qp[nic->last_replier]);
	}
	while ((set = nic->ready & ~nic->data_paused)) {
		nic->last_sender = next_in_turn(set, nic->last_sender);
		uint32_t len = requester_next(nic, &nic->qp[nic->last_sender], start_ns);
		if (len)
			return len;
	}
	return 0;
}

void rnic_advance(struct rnic *nic, int64_t now_ns, rnic_emit emit, void *ctx)
{
	nic->now_ns = now_ns;
	if (__atomic_load_n(&nic->shared->doorbell, __ATOMIC_RELAXED))
		take_doorbells(nic);
	if (now_ns >= nic->next_timer_ns)
		run_timers(nic);
	while ((nic->notifying | nic->replying | nic->ready) && nic->tx_free_ns <= now_ns + nic->mtu_time_ns) {
		int64_t start_ns = nic->tx_free_ns > now_ns ? nic->tx_free_ns : now_ns;
		uint32_t len = next_frame(nic, start_ns);
		if (!len)
			break;
		nic->tx_free_ns = start_ns + (int64_t)((len + WIRE_EXTRA_BYTES) * nic->ns_per_byte + 0.5);
		nic->count->tx_packets++;
		nic->count->tx_bytes += len;
		emit(ctx, nic->config.index, nic->frame, len);
	}
}

void rnic_rx(struct rnic *nic, const uint8_t *frame, uint32_t len, int64_t now_ns)
{
	struct rnic_packet packet;

	nic->now_ns = now_ns;
	enum parse_result result = packet_parse(nic, frame, len, &packet);
	if (result == PARSE_NOT_OURS)
		return;
	nic->count->rx_packets++;
	nic->count->rx_bytes += len;
	if (result != PARSE_OK) {
		if (result == PARSE_BAD_ICRC)
			nic->count->bad_icrc++;
		else
			nic->count->bad_packets++;
		return;
	}
	struct rnic_qp *qp = rnic_find_qp(nic, packet.dest_qp);
	if (!qp || qp->state < IBV_QPS_RTR || qp->state > IBV_QPS_RTS || packet.src_ip != qp->remote_ip) {
		nic->count->no_qp++;
		return;
	}
	if (packet.opcode == CNP_OPCODE) {
		congestion_notified(nic, qp);
	} else if (packet.opcode == RC_ACKNOWLEDGE) {
		requester_acknowledge(nic, qp, &packet);
	} else {
		if (packet.congested)
			congestion_marked(nic, qp);
		responder_request(nic, qp, &packet);
	}
}

int rnic_event_pending(struct rnic *nic)
{
	int event = nic->event;

	nic->event = 0;
	return event;
}
