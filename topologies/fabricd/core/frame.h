/*
 * Frames: what the traffic manager needs to read from one, and the metadata that it writes into the
 * two MAC addresses while a frame is inside a switch (an IP-routed fabric does not need them).
 *
 *   source MAC       02 | ingress port | flow hash | flowlet hash | spray counter | slot
 *   destination MAC  02 | time of delivery into the switch, 40 bits, in microseconds
 */
#ifndef STRAGGLER_FRAME_H
#define STRAGGLER_FRAME_H

#include <stdint.h>

#include "telemetry.h"

#define ETHERNET_HEADER_BYTES 14
#define ETHERNET_OVERHEAD_BYTES 24 /* FCS 4, preamble and SFD 8, inter-frame gap 12: on the wire, not in memory */
#define MINIMUM_FRAME_BYTES 34     /* Ethernet and an IPv4 header: a veth pads nothing */
#define ROCE_UDP_PORT 4791
#define PFC_FRAME_BYTES 60         /* the smallest Ethernet frame, without FCS */

enum { ECN_NOT_ECT = 0, ECN_ECT1 = 1, ECN_ECT0 = 2, ECN_CE = 3 };

struct flow_key {
	uint32_t src_ip, dst_ip;
	uint16_t src_port, dst_port; /* 0 where the protocol has none, and for fragments */
	uint8_t protocol;
};

struct frame_info {
	struct flow_key key;
	uint32_t psn;  /* of a RoCE packet, otherwise 0 */
	uint8_t dscp, ecn;
};

struct frame_metadata {
	uint8_t ingress_port, flow_hash, flowlet_hash, spray, slot;
	uint64_t time_us; /* the low 40 bits of it */
};

/* IEEE 802.1Qbb: which classes it is about, and for how long each is to stop (0: go on). */
struct pfc_frame {
	uint8_t classes;
	uint16_t quanta[MAX_CLASSES]; /* of 512 bit times */
};

/* Returns DROP_NONE and fills `info`, or why the fabric does not carry the frame. */
enum drop_reason frame_parse(const uint8_t *frame, uint32_t len, uint32_t max_len, struct frame_info *info);

void frame_write_metadata(uint8_t *frame, const struct frame_metadata *metadata);
/* Returns 0 if the MAC addresses are not metadata. */
int frame_read_metadata(const uint8_t *frame, struct frame_metadata *metadata);
void frame_write_macs(uint8_t *frame, const uint8_t dst[6], const uint8_t src[6]);

/* Sets Congestion Experienced in a frame that frame_parse() took. A RoCE packet's ICRC does not cover these bits. */
void frame_set_ce(uint8_t *frame);
/* Returns 0 if it is not a priority-based flow control frame. */
int frame_read_pfc(const uint8_t *frame, uint32_t len, struct pfc_frame *pfc);
/* Writes PFC_FRAME_BYTES. */
void frame_write_pfc(uint8_t *frame, const uint8_t src[6], const struct pfc_frame *pfc);

uint64_t mix64(uint64_t x); /* a good mixture of all bits: hashing, and seeding */
/* Hashing: one digest of the five-tuple, from which every switch derives its own with its seed. */
uint64_t flow_digest(const struct flow_key *key);
uint8_t flow_hash_of_digest(uint64_t digest, uint64_t seed, uint32_t flowlet);
/* The same in one step: the byte that a switch with `seed` writes for a flow (flowlet 0). */
uint8_t flow_hash(uint64_t seed, uint32_t src_ip, uint32_t dst_ip, uint8_t protocol, uint16_t src_port, uint16_t dst_port);

#endif
