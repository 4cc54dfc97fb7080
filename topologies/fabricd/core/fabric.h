/*
 * The fabric: every link, every egress queue and every switch's buffer and tables in one object.
 *
 * The core is pure: it makes no system call, allocates nothing and never asks for the time.  The
 * caller gives it memory, hands it the frames that devices emitted (fabric_rx) and the time
 * (fabric_advance), and takes away the frames that devices are to receive (fabric_out).  So the
 * same code runs over memory-mapped rings in real time, under pytest with a virtual clock, and
 * under a fuzzer.
 *
 * A port is one end of a link; it belongs to a host or to a switch, and `peer` is the port at the
 * other end.  A frame's way over one link:
 *
 *   fabric_rx(port)   classify by DSCP; if it comes out of a switch, read the metadata back
 *   queue             admitted or dropped; perhaps marked (ECN)
 *   serialise         the scheduler's choice among the classes that nobody holds back; exact: begins at
 *                     max(arrival, wire free, permission), lasts (len + 24) * 8 / rate
 *   fly               the link's propagation delay
 *   ingress(peer)     lossless classes are charged to the ingress buffer of the port at the far end, and stay so until
 *                     their last bit has left the switch by another port
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
enum flow_control { FLOW_CONTROL_NONE = 0, FLOW_CONTROL_PFC = 1, FLOW_CONTROL_CREDITS = 2 };
/* What the watchdog does with a queue in a storm: drop what it holds and gets, or send in spite of the pauses. */
enum watchdog_action { WATCHDOG_DROP = 1, WATCHDOG_FORWARD = 2 };

struct fabric_config {
	uint32_t ports, switches, nics;
	uint32_t flows;         /* room in the flow table; a power of two */
	uint32_t frame_bytes;   /* the largest frame, without FCS */
	uint32_t pool_frames;   /* frames that queues and links can hold */
	uint32_t series_rows, trace_records;
	uint32_t series_classes;    /* mask: queues whose depth the series holds */
	uint32_t flow_control;      /* enum flow_control, on every link */
	uint32_t pause_quanta;      /* of 512 bit times: how long one PFC frame stops the peer */
	int64_t watchdog_poll_ns;   /* 0: no switch has a watchdog */
	uint8_t dscp_class[64];
};

struct port_config {
	uint32_t kind;          /* device_kind of the owner */
	uint32_t node;          /* index of the host or switch */
	uint32_t number;        /* OpenFlow port number, or the host's NIC number */
	uint32_t peer;
	int64_t rate_bps, delay_ns, buffer_bytes; /* the buffer is for what is not charged to an ingress port */
	uint8_t mac[6];
	uint8_t lossless_classes;  /* mask: charged at ingress; under flow control at egress */
	uint8_t strict_classes;    /* mask: before all others, the highest first */
	uint8_t ets_share[MAX_CLASSES]; /* of the others: 1..100, in proportion (deficit round robin) */
	int64_t xoff_bytes;        /* each lossless class at ingress; 0: the switch's dynamic threshold */
	int64_t xon_offset_bytes;  /* this much below XOFF it goes on */
	int64_t headroom_bytes;    /* room above XOFF, each lossless class */
	int64_t credit_bytes;      /* advertised to the peer, each lossless class */
	int64_t drain_bps;         /* of a host: how fast its NIC gets rid of what it receives; 0: at once */
};

struct switch_config {
	uint64_t hash_seed;
	int64_t flowlet_gap_ns;      /* 0: a flow is one flowlet for ever */
	int64_t lossy_pool_bytes;    /* of all egress queues that are not lossless; 0: ports have their own only */
	double alpha;                /* a lossy queue may grow to alpha * what is free of the pool */
	int64_t lossless_pool_bytes; /* of all ingress up to XOFF; 0: no limit */
	double xoff_alpha;           /* dynamic XOFF: xoff_alpha * what is free of that pool */
	int64_t ecn_kmin_bytes, ecn_kmax_bytes;
	double ecn_pmax;
	uint32_t ecn_classes;        /* mask: queues that mark */
	uint32_t watchdog_action;    /* enum watchdog_action; 0: no watchdog */
	int64_t watchdog_detect_ns, watchdog_restore_ns;
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
/* Before the first frame.  These return 0 or -EINVAL. */
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
/*
 * Mask of the lossless classes in which the device at `port` must hold back: paused, out of credits, or with
 * two full frames in the queue already (another class has the wire).
 */
uint32_t fabric_paused_classes(const struct fabric *f, uint32_t port);

/* Arguments that are -1 leave a value as it is; fractions are in units of 1 / CONTROL_FRACTION_UNITS. */
enum fabric_op {
	FABRIC_SET_SWITCH = 1,      /* index = switch; arg: 0 hash_seed, 1 flowlet_gap_ns */
	FABRIC_SET_PORT_UP = 2,     /* index = port; arg: 0 up */
	FABRIC_SERIES_INTERVAL = 3, /* arg: 0 interval_ns, 0 stops */
	FABRIC_SET_ECN = 4,         /* index = switch; arg: 0 Kmin, 1 Kmax in bytes, 2 Pmax (fraction), 3 mask of classes */
	FABRIC_SET_BUFFER = 5,      /* index = switch; arg: 0 lossy pool, 1 lossless pool in bytes, 2 alpha, 3 xoff_alpha (fractions) */
	FABRIC_SET_DRAIN = 6,       /* index = port of a host; arg: 0 drain_bps, 0: no limit */
	FABRIC_SET_BIT_ERRORS = 7,  /* index = port; arg: 0 probability (fraction) that a frame arrives broken, 1 seed */
	FABRIC_PLANT_DROP = 8,      /* index = port; arg: 0 source and 1 destination address (0: any), 2 frames of these to let
	                               through before, 3 frames to lose then, 4 least length of a frame that counts */
	FABRIC_PAUSE_STORM = 9,     /* index = port; arg: 0 mask of classes in which it tells its peer to stop for ever; 0 ends */
	FABRIC_SET_PORT_BUFFER = 10, /* index = port of a switch; arg: 0 buffer, 1 XOFF (0: dynamic), 2 XON offset, 3 headroom, in bytes */
	FABRIC_CLEAR_WATERMARKS = 11, /* every peak and watermark becomes what is there now */
};
void fabric_control(struct fabric *f, struct control_request *request);

#endif
