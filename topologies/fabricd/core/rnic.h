/*
 * A soft RDMA NIC: RoCEv2, reliable connection, in software.
 *
 * It posts and receives real frames (Ethernet, IPv4, UDP 4791, BTH, ...) for up to 64 queue pairs
 * and does what the transport of a hardware NIC does: segmentation by path MTU, 24-bit PSNs,
 * coalesced ACKs, NAKs, go-back-N, retransmission timeout, retry counts, receiver not ready, checks of
 * keys, bounds and rights, round robin over queue pairs, pacing at line rate, wait-on-time, congestion
 * control (DCQCN, dcqcn.h) and its notifications, pauses by traffic class.  Sources:
 * InfiniBand Architecture Specification 1.4, chapter 9 and annex A17; opcodes and syndromes as in
 * Linux's rxe_opcode.h and rxe_hdr.h.
 *
 * Pure: no system call, no allocation, no clock.  The caller hands in memory, frames and the
 * time (ns of the lab's clock, never going back) and takes frames out.  Not thread-safe: one thread calls
 * everything here; agents work on the shared memory beside it (verbs.h).
 */
#ifndef STRAGGLER_RNIC_H
#define STRAGGLER_RNIC_H

#include <stddef.h>
#include <stdint.h>

#include "control.h"
#include "dcqcn.h"
#include "telemetry.h"
#include "verbs.h"

#define RNIC_ARENA_BYTES 33554432 /* a sensible default, 32 MiB; pages that nobody touches cost nothing */
#define RNIC_ACK_EVERY 16
#define RNIC_MIN_MTU 256
#define RNIC_MAX_MTU 4096
#define RNIC_FIRST_QP 0x11
#define RNIC_UDP_PORT 4791
#define RNIC_CNP_DSCP 48

struct rnic;

struct rnic_config {
	uint32_t index;          /* of the NIC: its row in telemetry, and `nic` in rnic_emit */
	uint32_t port;           /* global number of its port: `port` in trace records */
	uint32_t ip;             /* host byte order */
	uint32_t mtu_bytes;      /* path MTU, payload bytes a packet: a multiple of 4, RNIC_MIN_MTU..RNIC_MAX_MTU */
	uint32_t dscp;           /* of data, 0..63 */
	uint32_t ack_dscp;       /* of ACKs and NAKs, 0..63; 0: that of their queue pair's data */
	uint32_t cnp_dscp;       /* 0..63; 0: RNIC_CNP_DSCP */
	const uint8_t *dscp_class; /* [64] traffic classes below MAX_CLASSES, copied; NULL: 26 -> 3, 48 -> 6, others 0 */
	uint8_t mac[6];
	uint8_t gateway_mac[6];  /* of the next hop: every frame goes there */
	double rate_bps;         /* lab bits/s on the wire, preamble and gap included */
	double slowdown;         /* turns the RNR timer codes on the wire, hardware time, into lab time; 0: 1 */
	uint64_t arena_bytes;    /* a multiple of VERBS_PAGE_BYTES, at most 2^36 */
};

/* `frame` (no FCS) is valid during the call. */
typedef void (*rnic_emit)(void *ctx, uint32_t nic, const uint8_t *frame, uint32_t len);

size_t rnic_bytes(void);
size_t rnic_shared_bytes(uint64_t arena_bytes);

/*
 * `nic` is rnic_bytes() long, `shared` rnic_shared_bytes(config->arena_bytes); both zeroed, aligned to
 * 64 bytes and kept by the caller, as `telemetry` is.  0, or -EINVAL: a value of `config` is out of range.
 */
int rnic_init(struct rnic *nic, const struct rnic_config *config, void *shared, struct telemetry *telemetry);

/* A frame came in.  Anything may be handed in; what is not RoCEv2 for this NIC is ignored. */
void rnic_rx(struct rnic *nic, const uint8_t *frame, uint32_t len, int64_t now_ns);

/* Take posted work, run timers, and emit what the wire has room for. */
void rnic_advance(struct rnic *nic, int64_t now_ns, rnic_emit emit, void *ctx);

/*
 * The NIC's port is paused for the traffic classes in `class_mask` (bit = class): nothing of those classes
 * is emitted until a call without them.  Cheap when nothing changes.
 */
void rnic_set_paused(struct rnic *nic, uint32_t class_mask);

/* Operations: enum rnic_op.  Sets request->status and request->result. */
void rnic_control(struct rnic *nic, struct control_request *request);

/* 1, once, when a completion queue that was armed has got an entry. */
int rnic_event_pending(struct rnic *nic);

#endif
