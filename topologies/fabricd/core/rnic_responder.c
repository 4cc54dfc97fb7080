/*
 * The side that is written to: puts requests into registered memory in order, exactly once, and
 * owes the requester ACKs and NAKs, which rnic_advance() sends when the wire takes them (several
 * ACKs that fall due meanwhile become one).
 *
 * What may come next is `expected`.  An earlier PSN is a duplicate: acknowledged again, otherwise
 * ignored.  A later one means that something is missing: it is dropped, and the first one after a
 * gap is answered by a NAK; no other NAK goes out until the expected packet arrives.
 */
#include "rnic_internal.h"

#include <string.h>

#define DUPLICATE_DISTANCE 0x800000u /* half of the PSN space lies behind `expected` */

static int is_first(uint8_t opcode)
{
	return opcode == RC_WRITE_FIRST || opcode == RC_WRITE_ONLY || opcode == RC_WRITE_ONLY_IMM;
}

static int is_last(uint8_t opcode)
{
	return opcode != RC_WRITE_FIRST && opcode != RC_WRITE_MIDDLE;
}

static int has_immediate(uint8_t opcode)
{
	return opcode == RC_WRITE_LAST_IMM || opcode == RC_WRITE_ONLY_IMM;
}

static void owe_ack(struct rnic *nic, struct rnic_qp *qp)
{
	qp->ack_due = 1;
	nic->replying |= 1ull << qp->slot;
}

static void owe_nak(struct rnic *nic, struct rnic_qp *qp, uint8_t syndrome)
{
	qp->nak_due = 1;
	qp->nak_syndrome = syndrome;
	qp->nak_psn = (uint32_t)qp->expected & PSN_MASK;
	qp->gap_reported = 1;
	nic->replying |= 1ull << qp->slot;
}

static void refuse(struct rnic *nic, struct rnic_qp *qp, uint8_t syndrome, uint32_t status)
{
	if (syndrome == AETH_NAK_REMOTE_ACCESS)
		nic->count->access_errors++;
	owe_nak(nic, qp, syndrome);
	rnic_fail_qp(nic, qp, status);
}

/* Does the packet fit into the message that it claims to belong to? */
static int well_formed(const struct rnic_qp *qp, const struct rnic_packet *packet)
{
	if (is_first(packet->opcode) == qp->in_message)
		return 0;
	uint32_t left = is_first(packet->opcode) ? packet->dma_length : qp->write_left;
	if (left > RNIC_MAX_MESSAGE_BYTES)
		return 0;
	if (is_last(packet->opcode))
		return packet->payload_bytes == left && left <= qp->mtu;
	return packet->payload_bytes == qp->mtu && left > qp->mtu;
}

/* Where the payload goes, or NULL: no such right.  The first packet is checked for the whole message. */
static uint8_t *destination(struct rnic *nic, struct rnic_qp *qp, const struct rnic_packet *packet)
{
	if (is_first(packet->opcode))
		return rnic_resolve(nic, qp->pd, packet->rkey, packet->remote_addr, packet->dma_length, IBV_ACCESS_REMOTE_WRITE);
	/* Again, since the region may have been deregistered between two packets. */
	return rnic_resolve(nic, qp->pd, qp->write_rkey, qp->write_addr, packet->payload_bytes, IBV_ACCESS_REMOTE_WRITE);
}

static int receive_posted(const struct rnic_qp *qp)
{
	uint32_t posted = __atomic_load_n(&qp->ring->recv_producer, __ATOMIC_ACQUIRE) - qp->recv_consumer;

	return posted > 0 && posted <= VERBS_RECV_DEPTH;
}

static void complete_receive(struct rnic *nic, struct rnic_qp *qp, const struct rnic_packet *packet)
{
	const struct verbs_recv_wr *wr = &qp->ring->recv[qp->recv_consumer % VERBS_RECV_DEPTH];
	struct verbs_wc wc = {
		.wr_id = wr->wr_id,
		.opcode = IBV_WC_RECV_RDMA_WITH_IMM,
		.byte_len = qp->write_length,
		.imm_data = packet->imm_data,
		.src_qp = qp->remote_qp,
		.wc_flags = IBV_WC_WITH_IMM,
	};

	__atomic_store_n(&qp->ring->recv_consumer, ++qp->recv_consumer, __ATOMIC_RELEASE);
	rnic_complete(nic, qp, qp->recv_cq, &wc);
}

static void accept_write(struct rnic *nic, struct rnic_qp *qp, const struct rnic_packet *packet, uint8_t *to)
{
	if (is_first(packet->opcode)) {
		qp->write_rkey = packet->rkey;
		qp->write_addr = packet->remote_addr;
		qp->write_left = qp->write_length = packet->dma_length;
	}
	if (packet->payload_bytes)
		memcpy(to, packet->payload, packet->payload_bytes);
	qp->write_addr += packet->payload_bytes;
	qp->write_left -= packet->payload_bytes;
	qp->in_message = !is_last(packet->opcode);
	qp->expected++;
	nic->count->rx_payload_bytes += packet->payload_bytes;
	if (packet->ack_request)
		owe_ack(nic, qp);
	if (is_last(packet->opcode)) {
		qp->msn = (qp->msn + 1) & PSN_MASK;
		if (has_immediate(packet->opcode))
			complete_receive(nic, qp, packet);
	}
}

void responder_request(struct rnic *nic, struct rnic_qp *qp, const struct rnic_packet *packet)
{
	uint32_t ahead = (packet->psn - (uint32_t)qp->expected) & PSN_MASK;

	if (ahead >= DUPLICATE_DISTANCE) {
		nic->count->duplicates++;
		owe_ack(nic, qp);
		return;
	}
	if (ahead > 0) {
		nic->count->out_of_order++;
		rnic_trace(nic, qp, TRACE_REORDER, 0, packet->psn, packet->payload_bytes, 0);
		if (!qp->gap_reported)
			owe_nak(nic, qp, AETH_NAK_SEQUENCE);
		return;
	}
	qp->gap_reported = 0;
	if (!well_formed(qp, packet)) {
		refuse(nic, qp, AETH_NAK_INVALID_REQUEST, IBV_WC_LOC_QP_OP_ERR);
		return;
	}
	/* A write of no bytes needs no key (InfiniBand specification, 9.4.1.3). */
	uint8_t *to = packet->payload_bytes ? destination(nic, qp, packet) : NULL;
	if (!(qp->access & IBV_ACCESS_REMOTE_WRITE) || (packet->payload_bytes && !to)) {
		refuse(nic, qp, AETH_NAK_REMOTE_ACCESS, IBV_WC_LOC_ACCESS_ERR);
		return;
	}
	if (has_immediate(packet->opcode) && !receive_posted(qp)) {
		owe_nak(nic, qp, (uint8_t)(AETH_RNR_NAK | qp->rnr_code));
		return;
	}
	accept_write(nic, qp, packet, to);
}

uint32_t responder_reply(struct rnic *nic, struct rnic_qp *qp)
{
	uint32_t len;

	if (qp->nak_due) {
		qp->nak_due = 0;
		/* A NAK acknowledges everything before its PSN; an ACK behind it would say nothing new. */
		if (qp->nak_psn == ((uint32_t)qp->expected & PSN_MASK))
			qp->ack_due = 0;
		if (qp->nak_syndrome >= AETH_NAK_SEQUENCE)
			nic->count->naks_sent++;
		else
			nic->count->rnr_sent++;
		rnic_trace(nic, qp, TRACE_NAK_SENT, qp->nak_syndrome, qp->nak_psn, 0, 0);
		len = packet_ack(nic, qp, qp->nak_psn, qp->nak_syndrome);
	} else {
		qp->ack_due = 0;
		nic->count->acks_sent++;
		len = packet_ack(nic, qp, qp->expected - 1, AETH_ACK);
	}
	if (!qp->ack_due)
		nic->replying &= ~(1ull << qp->slot);
	return len;
}
