/* Parsing, metadata and hashing. Every read is checked against the frame's length: this is what the fuzzer feeds. */
#include "frame.h"

#include <string.h>

enum { ETHERTYPE_IPV4 = 0x0800, ETHERTYPE_MAC_CONTROL = 0x8808, PROTOCOL_TCP = 6, PROTOCOL_UDP = 17, LOCAL_UNICAST = 0x02 };
enum { OPCODE_PFC = 0x0101, PFC_FIELDS_BYTES = ETHERNET_HEADER_BYTES + 2 + 2 + 2 * MAX_CLASSES };

/* Of MAC control frames: no bridge forwards it. */
static const uint8_t PFC_ADDRESS[6] = { 0x01, 0x80, 0xc2, 0x00, 0x00, 0x01 };

static uint16_t read16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static void write16(uint8_t *p, uint32_t value)
{
	p[0] = (uint8_t)(value >> 8);
	p[1] = (uint8_t)value;
}

static uint32_t read32(const uint8_t *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

enum drop_reason frame_parse(const uint8_t *frame, uint32_t len, uint32_t max_len, struct frame_info *info)
{
	const uint8_t *ip = frame + ETHERNET_HEADER_BYTES, *l4;
	uint32_t header, total;

	memset(info, 0, sizeof *info);
	if (len < ETHERNET_HEADER_BYTES)
		return DROP_RUNT;
	if (len > max_len)
		return DROP_GIANT;
	if (read16(frame + 12) != ETHERTYPE_IPV4)
		return DROP_NOT_IPV4;
	if (len < MINIMUM_FRAME_BYTES)
		return DROP_RUNT;
	header = (ip[0] & 0x0fu) * 4;
	total = read16(ip + 2);
	if (ip[0] >> 4 != 4 || header < 20 || total < header || total > len - ETHERNET_HEADER_BYTES)
		return DROP_BAD_HEADER;
	info->key.src_ip = read32(ip + 12);
	info->key.dst_ip = read32(ip + 16);
	info->key.protocol = ip[9];
	info->dscp = ip[1] >> 2;
	info->ecn = ip[1] & 3;
	if (info->key.dst_ip >= 0xe0000000u)
		return DROP_MULTICAST;
	/* Only the first fragment has ports, so none of them may count or the packet would be torn over paths. */
	if ((read16(ip + 6) & 0x3fffu) != 0)
		return DROP_NONE;
	if (info->key.protocol != PROTOCOL_TCP && info->key.protocol != PROTOCOL_UDP)
		return DROP_NONE;
	if (total < header + 8)
		return DROP_BAD_HEADER;
	l4 = ip + header;
	info->key.src_port = read16(l4);
	info->key.dst_port = read16(l4 + 2);
	if (info->key.protocol == PROTOCOL_UDP && info->key.dst_port == ROCE_UDP_PORT && total >= header + 8 + 12)
		info->psn = read32(l4 + 8 + 8) & 0xffffffu;
	return DROP_NONE;
}

void frame_write_metadata(uint8_t *frame, const struct frame_metadata *m)
{
	frame[0] = LOCAL_UNICAST;
	frame[1] = (uint8_t)(m->time_us >> 32);
	frame[2] = (uint8_t)(m->time_us >> 24);
	frame[3] = (uint8_t)(m->time_us >> 16);
	frame[4] = (uint8_t)(m->time_us >> 8);
	frame[5] = (uint8_t)m->time_us;
	frame[6] = LOCAL_UNICAST;
	frame[7] = m->ingress_port;
	frame[8] = m->flow_hash;
	frame[9] = m->flowlet_hash;
	frame[10] = m->spray;
	frame[11] = m->slot;
}

int frame_read_metadata(const uint8_t *frame, struct frame_metadata *m)
{
	if (frame[0] != LOCAL_UNICAST || frame[6] != LOCAL_UNICAST)
		return 0;
	m->time_us = (uint64_t)frame[1] << 32 | read32(frame + 2);
	m->ingress_port = frame[7];
	m->flow_hash = frame[8];
	m->flowlet_hash = frame[9];
	m->spray = frame[10];
	m->slot = frame[11];
	return 1;
}

void frame_write_macs(uint8_t *frame, const uint8_t dst[6], const uint8_t src[6])
{
	memcpy(frame, dst, 6);
	memcpy(frame + 6, src, 6);
}

/* The checksum is updated as RFC 1624 has it: HC' = ~(~HC + ~m + m'), m the 16-bit word that changes. */
void frame_set_ce(uint8_t *frame)
{
	uint8_t *ip = frame + ETHERNET_HEADER_BYTES;
	uint32_t before = read16(ip), sum;

	ip[1] |= ECN_CE;
	sum = (~(uint32_t)read16(ip + 10) & 0xffff) + (~before & 0xffff) + read16(ip);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	write16(ip + 10, ~sum);
}

int frame_read_pfc(const uint8_t *frame, uint32_t len, struct pfc_frame *pfc)
{
	const uint8_t *control = frame + ETHERNET_HEADER_BYTES;
	uint32_t c;

	if (len < PFC_FIELDS_BYTES || read16(frame + 12) != ETHERTYPE_MAC_CONTROL || read16(control) != OPCODE_PFC ||
	    memcmp(frame, PFC_ADDRESS, sizeof PFC_ADDRESS) != 0)
		return 0;
	pfc->classes = control[3];
	for (c = 0; c < MAX_CLASSES; c++)
		pfc->quanta[c] = read16(control + 4 + 2 * c);
	return 1;
}

void frame_write_pfc(uint8_t *frame, const uint8_t src[6], const struct pfc_frame *pfc)
{
	uint8_t *control = frame + ETHERNET_HEADER_BYTES;
	uint32_t c;

	memset(frame, 0, PFC_FRAME_BYTES);
	frame_write_macs(frame, PFC_ADDRESS, src);
	write16(frame + 12, ETHERTYPE_MAC_CONTROL);
	write16(control, OPCODE_PFC);
	control[3] = pfc->classes;
	for (c = 0; c < MAX_CLASSES; c++)
		write16(control + 4 + 2 * c, pfc->quanta[c]);
}

/* The finalizer of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). */
uint64_t mix64(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

uint64_t flow_digest(const struct flow_key *key)
{
	uint64_t addresses = (uint64_t)key->src_ip << 32 | key->dst_ip;
	uint64_t ports = (uint64_t)key->protocol << 32 | (uint64_t)key->src_port << 16 | key->dst_port;

	return mix64(mix64(addresses + 0x9e3779b97f4a7c15ull) + ports);
}

uint8_t flow_hash_of_digest(uint64_t digest, uint64_t seed, uint32_t flowlet)
{
	return (uint8_t)(mix64(digest ^ mix64(seed * 0x9e3779b97f4a7c15ull + flowlet)) >> 56);
}

uint8_t flow_hash(uint64_t seed, uint32_t src_ip, uint32_t dst_ip, uint8_t protocol, uint16_t src_port, uint16_t dst_port)
{
	struct flow_key key = {
		.src_ip = src_ip, .dst_ip = dst_ip, .src_port = src_port, .dst_port = dst_port, .protocol = protocol,
	};

	return flow_hash_of_digest(flow_digest(&key), seed, 0);
}
