/*
 * Telemetry: the one block of memory that the data path writes and everybody else reads.
 *
 * The block starts with a header that says how many of each thing follow and where; a reader
 * needs nothing else (topologies/fabricd/telemetry.py maps it with numpy).  Counters only grow;
 * a reader takes two snapshots and subtracts.  Two rings carry what happened when: `series` holds
 * the depth of every queue at a set interval, `trace` one record per packet and hop, drop, path
 * change and transport event.  A ring's head counts all records ever written, so a reader that
 * comes too late sees that it has lost some and how many.
 *
 * All times are nanoseconds of the laboratory's clock (CLOCK_MONOTONIC in fabricd, the virtual
 * clock in tests), that is, after slow motion.  Bump TELEMETRY_VERSION with every change of layout.
 */
#ifndef STRAGGLER_TELEMETRY_H
#define STRAGGLER_TELEMETRY_H

#include <stddef.h>
#include <stdint.h>

#define TELEMETRY_MAGIC 0x53545247u /* "STRG" */
#define TELEMETRY_VERSION 2u

#define MAX_CLASSES 8     /* 802.1Q traffic classes, one egress queue each */
#define SLOTS_PER_SWITCH 256
#define HISTOGRAM_BUCKETS 256
#define DROP_REASONS 16

enum drop_reason {
	DROP_NONE = 0,
	DROP_TAIL = 1,          /* the port's own limit */
	DROP_SHARED = 2,        /* the dynamic threshold on the switch's shared buffer */
	DROP_LINK_DOWN = 3,
	DROP_POOL = 4,          /* the emulator ran out of packet memory: a fidelity failure */
	DROP_HEADROOM = 5,      /* a lossless frame, and the headroom of the ingress `port` and its class was full */
	DROP_WATCHDOG = 6,      /* the PFC watchdog's action at an egress queue that was paused for too long */
	DROP_BIT_ERROR = 7,     /* a planted error: the FCS at the far end of `port`'s link is wrong */
	/* Frames that a fabric of IP routers does not carry; never part of conservation. */
	DROP_RUNT = 8,
	DROP_GIANT = 9,
	DROP_NOT_IPV4 = 10,
	DROP_FOREIGN_MAC = 11,  /* came out of a switch without our metadata */
	DROP_BAD_HEADER = 12,
	DROP_MULTICAST = 13,
};

enum trace_kind {
	TRACE_HOP = 1,        /* a frame's last bit left `port`; wait_ns in the queue before its first bit; reason = class; arg = bytes
	                         queued when it came */
	TRACE_DROP = 2,       /* `reason` (drop_reason) at `port`; arg = bytes queued */
	TRACE_PATH = 3,       /* `flow` left its switch by `port`, the time before by port `arg` */
	TRACE_MARK = 4,       /* ECN: the frame got CE at `port`; reason = class, arg = bytes queued before it */
	/* Of the following, psn = 1 when it begins and 0 when it ends, then with wait_ns = how long it lasted; reason =
	 * class; flow = UINT32_MAX. */
	TRACE_PAUSE = 5,      /* ingress `port` tells its peer to stop, and to go on; bytes = charged to the port and class;
	                         arg = the port of this switch in whose queue most of them stand, UINT32_MAX: in none */
	TRACE_PAUSED = 6,     /* egress `port` obeys; bytes = queued.  Also when a pause runs out */
	TRACE_WATCHDOG = 7,   /* a storm at egress `port`; arg = watchdog_action; bytes = queued */
	TRACE_CREDIT_STALL = 8, /* egress `port` could send but for the credits; bytes = queued */
	TRACE_RETRANSMIT = 16, /* requester sends psn again; reason = retransmit_reason; arg = QP number */
	TRACE_TIMEOUT = 17,   /* requester's timer fired with psn unacknowledged; arg = QP number */
	TRACE_NAK_SENT = 18,  /* responder: psn expected; reason = AETH syndrome; arg = QP number */
	TRACE_REORDER = 19,   /* responder: psn arrived, later than expected; arg = QP number */
	TRACE_QP_ERROR = 20,  /* reason = work completion status; arg = QP number */
	TRACE_MESSAGE = 21,   /* requester: message completed; wait_ns from first bit to last ACK; bytes; arg = QP number */
	TRACE_RATE = 22,      /* requester's rate changed; reason = dcqcn_change; wait_ns = the new rate in bit/s, bytes =
	                         alpha in millionths; arg = QP number.  t_ns may lie before records already written */
};

enum retransmit_reason { RETRANSMIT_NAK = 1, RETRANSMIT_TIMEOUT = 2, RETRANSMIT_RNR = 3 };

struct telemetry_header {
	uint32_t magic, version;
	uint32_t ports, switches, nics, classes;
	uint32_t flows, series_rows, trace_records;
	uint32_t series_classes;   /* mask of the classes that a series row holds, in ascending order */
	uint64_t global_offset, port_offset, switch_offset, slot_offset, flow_offset, nic_offset, series_offset, trace_offset;
	uint64_t bytes;
};

/* Log-linear: see histogram_bucket(). Values are whole microseconds. */
struct telemetry_histogram {
	uint64_t bucket[HISTOGRAM_BUCKETS];
};

struct telemetry_global {
	int64_t now_ns;            /* time of the last tick */
	uint64_t ticks;
	uint64_t series_head, trace_head; /* records ever written */
	uint64_t flows_used, flows_overflow;
	uint64_t ring_overflow;    /* frames that the kernel could not put into a receive ring */
	uint64_t send_failed;      /* frames that the kernel did not take */
	uint64_t pool_used, pool_peak;
	struct telemetry_histogram lateness_us; /* delivery after it was due */
};

struct telemetry_queue {
	uint64_t depth_bytes, depth_frames, peak_bytes;
	uint64_t enqueued_frames, enqueued_bytes, sent_frames, sent_bytes, dropped_frames, dropped_bytes;
	uint64_t wred_ecn_marked_packets;
};

/*
 * One class at one port: its ingress buffer (SAI: ingress priority group) and its flow control.  Names
 * are SAI's (SAI_INGRESS_PRIORITY_GROUP_STAT_*, SAI_PORT_STAT_PFC_n_*) where SAI has one.  "tx": this port
 * tells its peer; "rx": the peer tells this port.
 */
struct telemetry_priority_group {
	uint64_t curr_occupancy_bytes, watermark_bytes;                     /* charged, headroom included */
	uint64_t xoff_room_curr_occupancy_bytes, xoff_room_watermark_bytes; /* in headroom */
	uint64_t pfc_tx_pkts, pfc_rx_pkts;
	uint64_t pfc_on2off_rx_pkts;           /* XONs that ended a pause */
	uint64_t tx_pause_ns, rx_pause_ns;     /* up to the last frame that said so, or the end of the pause */
	uint64_t wd_deadlock_detected;         /* storms that the watchdog found at this egress queue */
	uint64_t credit_stalls, credit_stall_ns;
	uint64_t credit_limit_units, credit_sent_units; /* of this egress, 64 bytes each, since the beginning */
	uint64_t written_off_bytes;            /* went into the switch and never came out of it */
};

/* One end of a link: the egress side of the device that owns the port. */
struct telemetry_port {
	uint64_t rx_frames, rx_bytes;          /* from the device, before the queue */
	uint64_t tx_frames, tx_bytes;          /* last bit on the wire */
	uint64_t delivered_frames;             /* handed to the device at the far end */
	uint64_t busy_ns;                      /* time spent serialising */
	uint64_t dropped[DROP_REASONS];        /* frames, by drop_reason */
	uint64_t up;
	uint64_t control_frames, control_busy_ns; /* MAC control and credits: in none of the counters above */
	struct telemetry_queue queue[MAX_CLASSES];
	struct telemetry_priority_group priority_group[MAX_CLASSES];
};

struct telemetry_switch {
	uint64_t in_frames, out_frames;        /* handed to the switch, seen coming out again */
	uint64_t buffer_used_bytes, buffer_peak_bytes; /* in egress queues */
	uint64_t lossless_used_bytes, lossless_peak_bytes, headroom_used_bytes, headroom_peak_bytes; /* charged to ingress */
	uint64_t flowlets;                     /* flowlets begun */
	uint64_t path_changes;
	struct telemetry_histogram inside_us;  /* time inside the switch, every frame */
};

/* A switch's flow table (what SAI's ARS profile calls max_flows): two live flows never share a slot. */
struct telemetry_slot {
	uint32_t flow;                         /* index into the flows, UINT32_MAX when never used */
	uint32_t out_port;                     /* global port by which it left last, UINT32_MAX: not yet */
	int64_t last_seen_ns;
	uint64_t frames, bytes;
};

struct telemetry_flow {
	uint32_t src_ip, dst_ip;               /* host byte order */
	uint16_t src_port, dst_port;
	uint8_t protocol, reserved[3];
	int64_t first_seen_ns;
	uint64_t sent_frames, sent_bytes;      /* entered the fabric */
	uint64_t delivered_frames, delivered_bytes;
	uint64_t dropped_frames;
	uint64_t path_changes;
};

struct telemetry_nic {
	uint64_t tx_packets, tx_bytes, rx_packets, rx_bytes;
	uint64_t tx_payload_bytes, rx_payload_bytes; /* first transmissions; accepted in order */
	uint64_t acks_sent, acks_received, naks_sent, naks_received, rnr_sent, rnr_received;
	uint64_t retransmitted_packets, timeouts, out_of_order, duplicates;
	uint64_t bad_icrc, bad_packets, no_qp, access_errors, qp_errors, cq_overruns;
	uint64_t np_ecn_marked_roce_packets, np_cnp_sent, rp_cnp_handled, rp_cnp_ignored; /* as mlx5 names them */
};

/* A series row is an int64_t time followed by uint32_t depth_bytes[ports][classes in series_classes], padded to 8 bytes. */

struct trace_record {
	int64_t t_ns;
	int64_t wait_ns;
	uint32_t flow;
	uint32_t psn;
	uint32_t bytes;
	uint32_t arg;
	uint16_t port;
	uint8_t kind, reason;
	uint32_t reserved;
};

struct telemetry {                             /* pointers into the block, for the writer */
	struct telemetry_header *header;
	struct telemetry_global *global;
	struct telemetry_port *port;
	struct telemetry_switch *sw;
	struct telemetry_slot *slot;           /* [switches][SLOTS_PER_SWITCH] */
	struct telemetry_flow *flow;
	struct telemetry_nic *nic;
	uint8_t *series;
	struct trace_record *trace;
	uint64_t series_row_bytes;
};

struct telemetry_shape {
	uint32_t ports, switches, nics, classes, series_classes, flows, series_rows, trace_records;
};

size_t telemetry_bytes(const struct telemetry_shape *shape);
/* Lays the block out in `memory` (zeroed by the caller, telemetry_bytes() long). */
void telemetry_init(struct telemetry *t, void *memory, const struct telemetry_shape *shape);
void telemetry_trace(struct telemetry *t, const struct trace_record *record);
/* Buckets: 0..15 one each, then eight to an octave, the last one open-ended. */
uint32_t histogram_bucket(uint64_t value);
uint64_t histogram_lower_bound(uint32_t bucket);
void histogram_add(struct telemetry_histogram *h, uint64_t value);

#endif
