/*
 * The side that writes: takes send requests from the ring, cuts them into packets, keeps them until
 * they are acknowledged, and goes back to the first unacknowledged packet when a NAK or
 * the timer says that something was lost (go-back-N).
 *
 * Three places in the stream of packets matter: `una`, the first one not acknowledged;
 * `send_psn`, the next to be sent; `sent_end`, one after the last ever sent.  Going back sets
 * send_psn to una; what is sent below sent_end is a retransmission.
 *
 * The retransmission timer runs while a packet that asked for an ACK is unanswered, and starts
 * afresh with every ACK that moves una.  A reason not to send (no request, window closed, waiting for a
 * time, or for the rate of congestion control) takes the queue pair out of nic->ready; the event that
 * ends the reason puts it back.
 */
#include "rnic_internal.h"

#define REQUEST(qp, n) (&(qp)->sq[(n) % VERBS_SEND_DEPTH])

/* RNR NAK timer codes in units of 10 us of hardware time (InfiniBand specification, table 45). */
static const uint32_t rnr_10us[32] = {
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
};

void requester_start(struct rnic_qp *qp, uint64_t first_psn)
{
	qp->una = qp->send_psn = qp->sent_end = qp->next_psn = qp->asked_end = first_psn;
	qp->una_byte = qp->send_byte = qp->next_byte = 0;
	qp->retries_left = qp->retry_count;
	qp->rnr_retries_left = qp->rnr_retry;
	qp->since_ask = 0;
	qp->deadline_ns = qp->wake_ns = NEVER;
	qp->hold_ns = INT64_MIN;
}

static uint32_t stop_sending(struct rnic *nic, struct rnic_qp *qp)
{
	qp->blocked = 1;
	nic->ready &= ~(1ull << qp->slot);
	return 0;
}

static uint32_t sleep_until(struct rnic *nic, struct rnic_qp *qp, int64_t at_ns)
{
	qp->wake_ns = at_ns;
	rnic_timer(nic, qp, at_ns);
	return stop_sending(nic, qp);
}

static uint32_t wait_for_rate(struct rnic *nic, struct rnic_qp *qp, int64_t at_ns)
{
	sleep_until(nic, qp, at_ns);
	qp->blocked = 0; /* it is its rate alone that keeps it, so a late tick must cost nothing */
	return 0;
}

static void go_back(struct rnic *nic, struct rnic_qp *qp, uint8_t reason)
{
	qp->send_psn = qp->asked_end = qp->una;
	qp->send_byte = qp->una_byte;
	qp->cursor = qp->done;
	qp->since_ask = 0;
	qp->deadline_ns = NEVER;
	qp->retransmit_reason = reason;
	nic->ready |= 1ull << qp->slot;
}

static uint32_t refusal(struct rnic *nic, const struct rnic_qp *qp, const struct verbs_send_wr *wr)
{
	if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
		return IBV_WC_LOC_QP_OP_ERR;
	if (wr->length > RNIC_MAX_MESSAGE_BYTES)
		return IBV_WC_LOC_LEN_ERR;
	if (wr->length && !rnic_resolve(nic, qp->pd, wr->lkey, wr->addr, wr->length, 0))
		return IBV_WC_LOC_PROT_ERR;
	return IBV_WC_SUCCESS;
}

/* Take the next request from the ring.  0: there is none. */
static int fetch(struct rnic *nic, struct rnic_qp *qp)
{
	uint32_t producer = __atomic_load_n(&qp->ring->send_producer, __ATOMIC_ACQUIRE);

	if (producer == qp->fetched)
		return 0;
	if (producer - qp->done > VERBS_SEND_DEPTH) { /* the index is nonsense, so the entries are too */
		rnic_fail_send(nic, qp, IBV_WC_LOC_QP_OP_ERR);
		return 0;
	}
	struct rnic_wqe *wqe = REQUEST(qp, qp->fetched);
	wqe->wr = qp->ring->send[qp->fetched % VERBS_SEND_DEPTH];
	wqe->error = refusal(nic, qp, &wqe->wr);
	wqe->first_psn = qp->next_psn;
	wqe->first_byte = qp->next_byte;
	wqe->packets = 0;
	if (!wqe->error) {
		wqe->packets = wqe->wr.length ? (wqe->wr.length - 1) / qp->mtu + 1 : 1;
		qp->next_psn += wqe->packets;
		qp->next_byte += wqe->wr.length;
	}
	qp->fetched++;
	return 1;
}

/* A request that cannot be sent fails when its turn to complete has come; until then it blocks those behind. */
static uint32_t fail_in_turn(struct rnic *nic, struct rnic_qp *qp, uint32_t status)
{
	if (qp->cursor == qp->done)
		rnic_fail_send(nic, qp, status);
	return stop_sending(nic, qp);
}

static uint8_t write_opcode(const struct rnic_wqe *wqe, int first, int last)
{
	int immediate = wqe->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;

	if (first && last)
		return immediate ? RC_WRITE_ONLY_IMM : RC_WRITE_ONLY;
	if (last)
		return immediate ? RC_WRITE_LAST_IMM : RC_WRITE_LAST;
	return first ? RC_WRITE_FIRST : RC_WRITE_MIDDLE;
}

/* Ask with every ack_every-th packet, with a message's last, and with the last one that the window admits. */
static int asks_for_ack(struct rnic_qp *qp, uint32_t left)
{
	uint32_t next = left < qp->mtu ? left : qp->mtu;
	int asks = left == 0 || ++qp->since_ask >= qp->ack_every ||
	           (qp->window_bytes && qp->send_byte - qp->una_byte + next > qp->window_bytes);

	if (asks)
		qp->since_ask = 0;
	return asks;
}

static void account(struct rnic *nic, struct rnic_qp *qp, struct rnic_wqe *wqe, const struct rnic_packet *packet,
                    int64_t start_ns)
{
	if (qp->send_psn < qp->sent_end) {
		nic->count->retransmitted_packets++;
		rnic_trace(nic, qp, TRACE_RETRANSMIT, qp->retransmit_reason, packet->psn, packet->payload_bytes, 0);
	} else {
		if (qp->send_psn == wqe->first_psn)
			wqe->first_tx_ns = start_ns;
		nic->count->tx_payload_bytes += packet->payload_bytes;
		qp->sent_end = qp->send_psn + 1;
	}
	qp->send_psn++;
	if (packet->ack_request) {
		qp->asked_end = qp->send_psn;
		if (qp->deadline_ns == NEVER && qp->timeout_ns) {
			qp->deadline_ns = start_ns + qp->timeout_ns;
			rnic_timer(nic, qp, qp->deadline_ns);
		}
	}
}

uint32_t requester_next(struct rnic *nic, struct rnic_qp *qp, int64_t start_ns)
{
	if (qp->state != IBV_QPS_RTS)
		return stop_sending(nic, qp);
	if (qp->hold_ns > nic->now_ns)
		return sleep_until(nic, qp, qp->hold_ns);
	if (qp->cursor == qp->fetched && !fetch(nic, qp))
		return stop_sending(nic, qp);
	struct rnic_wqe *wqe = REQUEST(qp, qp->cursor);
	if (wqe->error)
		return fail_in_turn(nic, qp, wqe->error);
	if (wqe->wr.earliest_ns > nic->now_ns)
		return sleep_until(nic, qp, wqe->wr.earliest_ns);

	uint32_t offset = (uint32_t)(qp->send_psn - wqe->first_psn) * qp->mtu;
	uint32_t left = wqe->wr.length - offset;
	uint32_t bytes = left < qp->mtu ? left : qp->mtu;
	uint64_t in_flight = qp->send_byte - qp->una_byte;
	if ((qp->window_bytes && in_flight && in_flight + bytes > qp->window_bytes) ||
	    qp->send_psn - qp->una >= RNIC_MAX_UNACKED)
		return stop_sending(nic, qp);
	int64_t wake_ns;
	if (!congestion_allows(nic, qp, start_ns, &wake_ns))
		return wait_for_rate(nic, qp, wake_ns);
	struct rnic_packet packet = {
		.opcode = write_opcode(wqe, offset == 0, left == bytes),
		.psn = (uint32_t)qp->send_psn & PSN_MASK,
		.remote_addr = wqe->wr.remote_addr,
		.rkey = wqe->wr.rkey,
		.dma_length = wqe->wr.length,
		.imm_data = wqe->wr.imm_data,
		.payload_bytes = bytes,
	};
	if (bytes) {
		packet.payload = rnic_resolve(nic, qp->pd, wqe->wr.lkey, wqe->wr.addr + offset, bytes, 0);
		if (!packet.payload) /* deregistered meanwhile */
			return fail_in_turn(nic, qp, IBV_WC_LOC_PROT_ERR);
	}
	qp->send_byte += bytes;
	packet.ack_request = (uint8_t)asks_for_ack(qp, left - bytes);
	account(nic, qp, wqe, &packet, start_ns);
	if (left == bytes)
		qp->cursor++;
	uint32_t len = packet_write(nic, qp, &packet, left == bytes && wqe->wr.send_flags & IBV_SEND_SOLICITED);
	congestion_sent(nic, qp, len);
	return len;
}

static void complete_send(struct rnic *nic, struct rnic_qp *qp, const struct rnic_wqe *wqe)
{
	struct verbs_wc wc = {.wr_id = wqe->wr.wr_id, .opcode = IBV_WC_RDMA_WRITE, .byte_len = wqe->wr.length};
	int signalled = qp->signal_all || wqe->wr.send_flags & IBV_SEND_SIGNALED;

	rnic_trace(nic, qp, TRACE_MESSAGE, 0, wqe->first_psn + wqe->packets - 1, wqe->wr.length,
	           nic->now_ns - wqe->first_tx_ns);
	__atomic_store_n(&qp->ring->send_consumer, ++qp->done, __ATOMIC_RELEASE);
	if (signalled)
		rnic_complete(nic, qp, qp->send_cq, &wc);
}

/* Everything before `una` has arrived. */
static void advance_una(struct rnic *nic, struct rnic_qp *qp, uint64_t una)
{
	if (una == qp->una)
		return;
	while (qp->done != qp->fetched) {
		const struct rnic_wqe *wqe = REQUEST(qp, qp->done);
		if (wqe->error || wqe->first_psn + wqe->packets > una)
			break;
		if (qp->cursor == qp->done)
			qp->cursor++; /* acknowledged before it was sent again */
		complete_send(nic, qp, wqe);
	}
	if (qp->state != IBV_QPS_RTS) /* a completion queue overran */
		return;
	qp->una = una;
	qp->una_byte = qp->next_byte;
	if (qp->done != qp->fetched) {
		const struct rnic_wqe *oldest = REQUEST(qp, qp->done);
		qp->una_byte = oldest->first_byte;
		if (una > oldest->first_psn)
			qp->una_byte += (una - oldest->first_psn) * qp->mtu;
	}
	if (qp->send_psn < una) {
		qp->send_psn = una;
		qp->send_byte = qp->una_byte;
	}
	qp->retries_left = qp->retry_count;
	qp->rnr_retries_left = qp->rnr_retry;
	qp->deadline_ns = NEVER;
	if (qp->asked_end > una && qp->timeout_ns) {
		qp->deadline_ns = nic->now_ns + qp->timeout_ns;
		rnic_timer(nic, qp, qp->deadline_ns);
	}
	nic->ready |= 1ull << qp->slot;
}

static void retry(struct rnic *nic, struct rnic_qp *qp, uint8_t reason)
{
	if (qp->retries_left == 0) {
		rnic_fail_send(nic, qp, IBV_WC_RETRY_EXC_ERR);
		return;
	}
	qp->retries_left--;
	go_back(nic, qp, reason);
}

static void receiver_not_ready(struct rnic *nic, struct rnic_qp *qp, uint32_t code)
{
	double slowdown = nic->config.slowdown > 0 ? nic->config.slowdown : 1.0;

	if (qp->rnr_retry != 7) { /* 7: for ever, as in ibverbs */
		if (qp->rnr_retries_left == 0) {
			rnic_fail_send(nic, qp, IBV_WC_RNR_RETRY_EXC_ERR);
			return;
		}
		qp->rnr_retries_left--;
	}
	go_back(nic, qp, RETRANSMIT_RNR);
	qp->hold_ns = nic->now_ns + (int64_t)(rnr_10us[code] * 10e3 * slowdown);
}

static void count_answer(struct rnic *nic, uint8_t syndrome)
{
	if (syndrome < AETH_RNR_NAK)
		nic->count->acks_received++;
	else if (syndrome < 2 * AETH_RNR_NAK)
		nic->count->rnr_received++;
	else if (syndrome >= AETH_NAK_SEQUENCE && syndrome <= AETH_NAK_REMOTE_OPERATION)
		nic->count->naks_received++;
	else
		nic->count->bad_packets++;
}

void requester_acknowledge(struct rnic *nic, struct rnic_qp *qp, const struct rnic_packet *packet)
{
	uint64_t ahead = (packet->psn - (uint32_t)qp->una) & PSN_MASK;
	uint8_t syndrome = packet->syndrome;

	count_answer(nic, syndrome);
	if (qp->state != IBV_QPS_RTS || ahead >= qp->sent_end - qp->una)
		return; /* old news, or about a packet that was never sent */
	if (syndrome < AETH_RNR_NAK) {
		advance_una(nic, qp, qp->una + ahead + 1);
		return;
	}
	if (syndrome >= 2 * AETH_RNR_NAK && (syndrome < AETH_NAK_SEQUENCE || syndrome > AETH_NAK_REMOTE_OPERATION))
		return;
	advance_una(nic, qp, qp->una + ahead);
	if (qp->state != IBV_QPS_RTS)
		return;
	switch (syndrome) {
	case AETH_NAK_SEQUENCE:
		retry(nic, qp, RETRANSMIT_NAK);
		break;
	case AETH_NAK_INVALID_REQUEST:
		rnic_fail_send(nic, qp, IBV_WC_REM_INV_REQ_ERR);
		break;
	case AETH_NAK_REMOTE_ACCESS:
		rnic_fail_send(nic, qp, IBV_WC_REM_ACCESS_ERR);
		break;
	case AETH_NAK_REMOTE_OPERATION:
		rnic_fail_send(nic, qp, IBV_WC_REM_OP_ERR);
		break;
	default:
		receiver_not_ready(nic, qp, syndrome & 31);
	}
}

void requester_timeout(struct rnic *nic, struct rnic_qp *qp)
{
	nic->count->timeouts++;
	rnic_trace(nic, qp, TRACE_TIMEOUT, 0, qp->una, 0, 0);
	retry(nic, qp, RETRANSMIT_TIMEOUT);
}
