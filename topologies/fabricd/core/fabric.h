/*
 * The fabric: every link, every egress queue and every switch's buffer and tables in one object.
 *
 * The core is pure: it makes no system call, allocates nothing and never asks for the time.  The
 * caller gives it memory, hands it the frames that devices emitted (fabric_rx) and the time
 * (fabric_advance), and takes away the frames that devices are to receive (fabric_out).  So the
 * same code runs over memory-mapped rings in real time, under pytest with a virtual clock, and
 * under a fuzzer.
 *
 * A port is the egress side of one end of a link; it belongs to a host or to a switch, and `peer`
 * is the port at the other end.  A frame's way over one link:
 *
 *   fabric_rx(port)   classify; if it comes out of a switch, read the metadata back
 *   queue             admitted or dropped (the port's limit, then the switch's shared buffer)
 *   serialise         exact: begins at max(arrival, wire free), lasts (len + 24) * 8 / rate
 *   fly               the link's propagation delay
 *   fabric_out(peer)  metadata written if the far end is a switch, real MACs if it is a host
 *
 * A tick that comes late makes a frame late but never shifts the schedule of those behind it.
 */
#ifndef STRAGGLER_FABRIC_H
#define STRAGGLER_FABRIC_H

#include <stddef.h>
#include <stdint.h>

#include "control.h"
#include "telemetry.h"

enum device_kind { DEVICE_HOST = 0, DEVICE_SWITCH = 1 };

struct fabric_config {
	uint32_t ports, switches, nics;
	uint32_t classes;       /* traffic classes in use, 1..MAX_CLASSES */
	uint32_t flows;         /* room in the flow table; a power of two */
	uint32_t frame_bytes;   /* the largest frame, without FCS */
	uint32_t pool_frames;   /* frames that queues and links can hold */
	uint32_t series_rows, trace_records;
};

struct port_config {
	uint32_t kind;          /* device_kind of the owner */
	uint32_t node;          /* index of the host or switch */
	uint32_t number;        /* OpenFlow port number, or the host's NIC number */
	uint32_t peer;
	int64_t rate_bps, delay_ns, buffer_bytes;
	uint8_t mac[6];         /* of a host's interface */
};

struct switch_config {
	uint64_t hash_seed;
	int64_t flowlet_gap_ns;      /* 0: a flow is one flowlet for ever */
	int64_t shared_buffer_bytes; /* 0: no shared buffer, ports have their own only */
	double alpha;                /* a queue may grow to alpha * free shared buffer */
};

struct fabric_out {
	uint32_t port;          /* whose device receives the frame */
	uint32_t len;
	const uint8_t *frame;   /* valid until fabric_out_done() */
	int64_t due_ns;
	uint32_t packet;
};

struct fabric; /* opaque */

size_t fabric_bytes(const struct fabric_config *config);
size_t fabric_telemetry_bytes(const struct fabric_config *config);
/* `memory` and `telemetry` are zeroed, fabric_bytes() and fabric_telemetry_bytes() long, 64-byte aligned. */
struct fabric *fabric_init(void *memory, void *telemetry, const struct fabric_config *config);
int fabric_set_port(struct fabric *f, uint32_t port, const struct port_config *config);
int fabric_set_switch(struct fabric *f, uint32_t sw, const struct switch_config *config);
void fabric_set_gateway_mac(struct fabric *f, const uint8_t mac[6]);
struct telemetry *fabric_telemetry(struct fabric *f);

/* A frame that the port's device emitted at arrival_ns, which may lie before the last fabric_advance(). */
void fabric_rx(struct fabric *f, uint32_t port, const uint8_t *frame, uint32_t len, int64_t arrival_ns);
void fabric_advance(struct fabric *f, int64_t now_ns);
/* The frames now due, in no order across ports and in order at each; `*count` of them. */
const struct fabric_out *fabric_out(struct fabric *f, uint32_t *count);
void fabric_out_done(struct fabric *f);
/* When something happens next if no frame comes in; INT64_MAX: never. */
int64_t fabric_next_ns(const struct fabric *f);

enum fabric_op {
	FABRIC_SET_SWITCH = 1,      /* index = switch; arg: 0 hash_seed, 1 flowlet_gap_ns; -1 leaves one as it is */
	FABRIC_SET_PORT_UP = 2,     /* index = port; arg: 0 up */
	FABRIC_SERIES_INTERVAL = 3, /* arg: 0 interval_ns, 0 stops */
};
void fabric_control(struct fabric *f, struct control_request *request);

#endif
