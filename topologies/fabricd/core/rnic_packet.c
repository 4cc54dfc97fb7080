/*
 * Frames in and out: Ethernet, IPv4, UDP, BTH, and RETH, AETH, ImmDt behind it, pad and ICRC.
 * Parsing trusts no length that the frame states; building patches a template a queue pair.
 */
#include "rnic_internal.h"

#include <string.h>

#include "icrc.h"

#define ETHERNET_BYTES 14u
#define IP_BYTES 20u
#define UDP_BYTES 8u
#define BTH_BYTES 12u
#define IP_AT ETHERNET_BYTES
#define UDP_AT (IP_AT + IP_BYTES)
#define BTH_AT (UDP_AT + UDP_BYTES)

#define IP_DONT_FRAGMENT 0x4000u
#define IP_RESERVED_AND_DF 0xc000u /* what is left of the fragment field is MF and the offset */
#define IP_ECT0 2u
#define IP_CE 3u           /* the ECN field's mask, too */
#define IP_TTL 64
#define PROTOCOL_UDP 17
#define BTH_MIGRATED 0x40u
#define BTH_BECN 0x40u     /* in the byte before the queue pair's number */
#define BTH_SOLICITED 0x80u
#define BTH_DEFAULT_PKEY 0xffffu

static uint32_t get16(const uint8_t *p)
{
	return (uint32_t)p[0] << 8 | p[1];
}

static uint32_t get24(const uint8_t *p)
{
	return (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
}

static uint32_t get32(const uint8_t *p)
{
	return get16(p) << 16 | get16(p + 2);
}

static uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

static void put16(uint8_t *p, uint32_t value)
{
	p[0] = (uint8_t)(value >> 8);
	p[1] = (uint8_t)value;
}

static void put24(uint8_t *p, uint32_t value)
{
	p[0] = (uint8_t)(value >> 16);
	put16(p + 1, value);
}

static void put32(uint8_t *p, uint32_t value)
{
	put16(p, value >> 16);
	put16(p + 2, value);
}

static void put64(uint8_t *p, uint64_t value)
{
	put32(p, (uint32_t)(value >> 32));
	put32(p + 4, (uint32_t)value);
}

/* Sum of the header's sixteen-bit words (RFC 1071), not yet folded. */
static uint32_t ip_words(const uint8_t *ip)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < IP_BYTES; i += 2)
		sum += get16(ip + i);
	return sum;
}

static uint32_t fold(uint32_t sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Bytes of extension headers behind the BTH, or -1: not an opcode of ours. */
static int extension_bytes(uint8_t opcode)
{
	switch (opcode) {
	case RC_WRITE_FIRST:
	case RC_WRITE_ONLY:
		return RETH_BYTES;
	case RC_WRITE_ONLY_IMM:
		return RETH_BYTES + IMMDT_BYTES;
	case RC_WRITE_MIDDLE:
	case RC_WRITE_LAST:
		return 0;
	case RC_WRITE_LAST_IMM:
		return IMMDT_BYTES;
	case RC_ACKNOWLEDGE:
		return AETH_BYTES;
	case CNP_OPCODE:
		return CNP_BYTES;
	default:
		return -1;
	}
}

static void parse_extensions(const uint8_t *p, struct rnic_packet *packet)
{
	if (packet->opcode == RC_ACKNOWLEDGE) {
		packet->syndrome = p[0];
		packet->msn = get24(p + 1);
		return;
	}
	if (packet->opcode == RC_WRITE_FIRST || packet->opcode == RC_WRITE_ONLY || packet->opcode == RC_WRITE_ONLY_IMM) {
		packet->remote_addr = get64(p);
		packet->rkey = get32(p + 8);
		packet->dma_length = get32(p + 12);
		p += RETH_BYTES;
	}
	if (packet->opcode == RC_WRITE_LAST_IMM || packet->opcode == RC_WRITE_ONLY_IMM)
		packet->imm_data = get32(p);
}

enum parse_result packet_parse(const struct rnic *nic, const uint8_t *frame, uint32_t len, struct rnic_packet *packet)
{
	const uint8_t *ip = frame + IP_AT, *udp = frame + UDP_AT, *bth = frame + BTH_AT;

	if (len < HEADER_BYTES + ICRC_BYTES || get16(frame + 12) != 0x0800 || ip[0] != 0x45 || ip[9] != PROTOCOL_UDP ||
	    get16(udp + 2) != RNIC_UDP_PORT)
		return PARSE_NOT_OURS;
	if (memcmp(frame, nic->config.mac, 6) != 0 || get32(ip + 16) != nic->config.ip)
		return PARSE_NOT_OURS;

	uint32_t ip_bytes = get16(ip + 2); /* Ethernet padding may follow */
	if (ip_bytes > len - ETHERNET_BYTES || ip_bytes < HEADER_BYTES - ETHERNET_BYTES + ICRC_BYTES ||
	    get16(udp + 4) != ip_bytes - IP_BYTES || (get16(ip + 6) & ~IP_RESERVED_AND_DF) != 0 ||
	    fold(ip_words(ip)) != 0xffff)
		return PARSE_BAD_PACKET;
	uint32_t covered = ip_bytes - ICRC_BYTES;
	const uint8_t *icrc = ip + covered;
	uint32_t sent_icrc = (uint32_t)icrc[0] | (uint32_t)icrc[1] << 8 | (uint32_t)icrc[2] << 16 | (uint32_t)icrc[3] << 24;
	if (icrc_compute(ip, covered) != sent_icrc)
		return PARSE_BAD_ICRC;

	int extension = extension_bytes(bth[0]);
	uint32_t pad = bth[1] >> 4 & 3, version = bth[1] & 15;
	uint32_t behind = covered - (HEADER_BYTES - ETHERNET_BYTES);
	if (extension < 0 || version != 0 || (get16(bth + 2) & 0x7fff) != (BTH_DEFAULT_PKEY & 0x7fff) ||
	    behind < (uint32_t)extension + pad)
		return PARSE_BAD_PACKET;
	if (bth[0] == CNP_OPCODE && (behind != CNP_BYTES || !(bth[4] & BTH_BECN)))
		return PARSE_BAD_PACKET;
	memset(packet, 0, sizeof *packet);
	packet->opcode = bth[0];
	packet->src_ip = get32(ip + 12);
	packet->dest_qp = get24(bth + 5);
	packet->ack_request = bth[8] >> 7;
	packet->congested = (ip[1] & IP_CE) == IP_CE;
	packet->psn = get24(bth + 9);
	packet->payload = bth + BTH_BYTES + extension;
	packet->payload_bytes = behind - (uint32_t)extension - pad;
	parse_extensions(bth + BTH_BYTES, packet);
	return PARSE_OK;
}

void packet_prepare(const struct rnic *nic, struct rnic_qp *qp)
{
	uint32_t ack_dscp = nic->config.ack_dscp ? nic->config.ack_dscp : qp->dscp;
	uint8_t *ip = qp->header + IP_AT, *udp = qp->header + UDP_AT, *bth = qp->header + BTH_AT;

	memset(qp->header, 0, sizeof qp->header);
	memcpy(qp->header, nic->config.gateway_mac, 6);
	memcpy(qp->header + 6, nic->config.mac, 6);
	put16(qp->header + 12, 0x0800);
	ip[0] = 0x45;
	put16(ip + 6, IP_DONT_FRAGMENT);
	ip[8] = IP_TTL;
	ip[9] = PROTOCOL_UDP;
	put32(ip + 12, nic->config.ip);
	put32(ip + 16, qp->remote_ip);
	put16(udp, qp->src_port);
	put16(udp + 2, RNIC_UDP_PORT);
	put16(bth + 2, BTH_DEFAULT_PKEY);
	put24(bth + 5, qp->remote_qp);
	qp->ip_sum = ip_words(ip);
	qp->tos = (uint8_t)(qp->dscp << 2 | IP_ECT0);
	qp->ack_tos = (uint8_t)(ack_dscp << 2 | IP_ECT0);
}

/* Headers up to and with the BTH; `behind` bytes will follow it, then the ICRC. */
static uint8_t *begin_frame(struct rnic *nic, const struct rnic_qp *qp, uint8_t tos, uint8_t opcode, uint32_t flags,
                            uint32_t psn, uint32_t behind)
{
	uint8_t *frame = nic->frame;
	uint32_t ip_bytes = HEADER_BYTES - ETHERNET_BYTES + behind + ICRC_BYTES;

	memcpy(frame, qp->header, HEADER_BYTES);
	frame[IP_AT + 1] = tos;
	put16(frame + IP_AT + 2, ip_bytes);
	put16(frame + IP_AT + 10, ~fold(qp->ip_sum + tos + ip_bytes));
	put16(frame + UDP_AT + 4, ip_bytes - IP_BYTES);
	frame[BTH_AT] = opcode;
	frame[BTH_AT + 1] = (uint8_t)flags;
	put24(frame + BTH_AT + 9, psn);
	return frame + HEADER_BYTES;
}

/* `end` is one past the last byte that the ICRC covers. */
static uint32_t end_frame(struct rnic *nic, uint8_t *end)
{
	uint32_t icrc = icrc_compute(nic->frame + IP_AT, (uint32_t)(end - (nic->frame + IP_AT)));

	for (int i = 0; i < ICRC_BYTES; i++)
		end[i] = (uint8_t)(icrc >> 8 * i);
	return (uint32_t)(end + ICRC_BYTES - nic->frame);
}

uint32_t packet_write(struct rnic *nic, const struct rnic_qp *qp, const struct rnic_packet *packet, int solicited)
{
	uint32_t pad = -packet->payload_bytes & 3;
	uint32_t behind = (uint32_t)extension_bytes(packet->opcode) + packet->payload_bytes + pad;
	uint32_t flags = BTH_MIGRATED | pad << 4 | (solicited ? BTH_SOLICITED : 0);
	uint8_t *p = begin_frame(nic, qp, qp->tos, packet->opcode, flags, packet->psn, behind);

	nic->frame[BTH_AT + 8] = (uint8_t)(packet->ack_request << 7);
	if (packet->opcode == RC_WRITE_FIRST || packet->opcode == RC_WRITE_ONLY || packet->opcode == RC_WRITE_ONLY_IMM) {
		put64(p, packet->remote_addr);
		put32(p + 8, packet->rkey);
		put32(p + 12, packet->dma_length);
		p += RETH_BYTES;
	}
	if (packet->opcode == RC_WRITE_LAST_IMM || packet->opcode == RC_WRITE_ONLY_IMM) {
		put32(p, packet->imm_data);
		p += IMMDT_BYTES;
	}
	if (packet->payload_bytes)
		memcpy(p, packet->payload, packet->payload_bytes);
	p += packet->payload_bytes;
	memset(p, 0, pad);
	return end_frame(nic, p + pad);
}

uint32_t packet_ack(struct rnic *nic, const struct rnic_qp *qp, uint64_t psn, uint8_t syndrome)
{
	uint8_t *p = begin_frame(nic, qp, qp->ack_tos, RC_ACKNOWLEDGE, BTH_MIGRATED, (uint32_t)psn & PSN_MASK, AETH_BYTES);

	p[0] = syndrome;
	put24(p + 1, qp->msn);
	return end_frame(nic, p + AETH_BYTES);
}

/* RoCEv2 congestion notification (annex A17.9.3): BECN set, PSN 0, sixteen bytes of zeros; a switch never marks it. */
uint32_t packet_cnp(struct rnic *nic, const struct rnic_qp *qp)
{
	uint32_t dscp = nic->config.cnp_dscp ? nic->config.cnp_dscp : RNIC_CNP_DSCP;
	uint8_t *p = begin_frame(nic, qp, (uint8_t)(dscp << 2), CNP_OPCODE, 0, 0, CNP_BYTES);

	nic->frame[BTH_AT + 4] = BTH_BECN;
	memset(p, 0, CNP_BYTES);
	return end_frame(nic, p + CNP_BYTES);
}
