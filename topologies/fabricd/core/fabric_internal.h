/*
 * What the parts of the fabric share and nobody else sees.
 *
 *   fabric.c          memory, configuration, a frame's way in, the time
 *   delivery.c        a frame's way out: the far end of a link
 *   fabric_control.c  what can be changed while it runs
 *   flow_table.c      flows, each switch's slots and flowlets, path changes
 *   tm.c              traffic manager: queues, serialising, flying
 *   scheduler.c       which class is next
 *   buffer.c          who may have how much of a switch's memory; charging frames to where they came in
 *   ecn.c             marking
 *   pfc.c             priority-based flow control: telling the peer to stop, and obeying; watchdog.c for when it never ends
 *   credits.c         credit-based flow control
 *   receiver.c        a host's NIC that is slower than its link
 *   faults.c          links that lose frames
 *
 * What happens at a port is computed with the time at which it happens, not the tick's: tm_serve()
 * brings a port up to a moment, and whatever changes what the port may do (a pause, credits) first serves it up to then.
 */
#ifndef STRAGGLER_FABRIC_INTERNAL_H
#define STRAGGLER_FABRIC_INTERNAL_H

#include "fabric.h"
#include "frame.h"

#define NONE UINT32_MAX
#define NEVER INT64_MAX
#define NANOSECONDS 1000000000ll
/* A frame that was inside a switch for a whole epoch and more is written off. */
#define EPOCH_SHIFT_US 20

enum packet_kind { PACKET_DATA = 0, PACKET_MAC_CONTROL = 1, PACKET_CREDITS = 2 };

struct packet {
	uint32_t next;       /* in a queue, a line or the free list */
	uint32_t flow;       /* NONE when the flow table is full */
	uint32_t len, psn;
	uint32_t depth_seen; /* bytes in its queue when it came */
	uint32_t ingress;    /* port whose ingress buffer it is charged to, or NONE */
	uint16_t traffic_class, kind;
	uint64_t digest;
	int64_t enqueued_ns, wait_ns;
	int64_t due_ns;      /* last bit sent, then: arrival at the far end */
};

struct fifo {
	uint32_t head, tail;
};

/* One class of a port, frames that come in over the link (lossless classes only). */
struct ingress {
	uint64_t bytes;           /* charged: in the switch, queued, being sent */
	uint64_t headroom_bytes;  /* of these, in headroom */
	uint64_t inside_bytes[2]; /* of these, in the switch: delivered in an even and in an odd epoch */
	uint64_t inside_units[2];
	int64_t told_ns;          /* time up to which tx_pause_ns counts */
	int64_t xoff_since_ns;
	uint64_t freed_units;     /* credits: ever given back, and how much of that the peer was told of or will be */
	uint64_t announced_units;
};

/* One class of a port, frames that leave. */
struct egress {
	int64_t quantum, deficit; /* of the scheduler, wire bytes */
	int64_t pause_until_ns;
	int64_t paused_since_ns, told_ns; /* told: time up to which rx_pause_ns counts */
	int64_t last_xoff_ns;
	int64_t stuck_since_ns;   /* watchdog: paused with frames waiting at every poll since; 0: not */
	int64_t storm_ns;         /* when the watchdog acted last */
	uint64_t sent_at_poll;
	uint64_t sent_units, limit_units; /* credits */
	int64_t credit_ns;        /* when the limit came */
	int64_t stalled_since_ns; /* NEVER: not */
};

/* Planted faults of the link that begins at a port. */
struct faults {
	uint32_t error_threshold; /* a frame is lost when 30 random bits are less */
	uint64_t random;
	uint32_t src_ip, dst_ip, least_bytes;
	uint64_t let_through, lose;
};

/* What every tick looks at comes first. */
struct port {
	struct fifo line;           /* frames between the two ends of the link */
	struct fifo control;        /* MAC control frames of the device */
	struct fifo receive;        /* of a host: received, not yet drained */
	uint32_t serialising;       /* the frame on the wire, or NONE */
	uint8_t waiting_classes;    /* mask of queues that are not empty */
	uint8_t announce_classes;   /* mask: of which the peer must be told */
	uint8_t xoff_classes;       /* mask: the peer was told to stop */
	uint8_t storm_classes;      /* mask: it is told so for ever (a planted fault) */
	uint8_t paused_classes;     /* mask: the peer told us to stop, and the pause has not been seen to end */
	uint8_t watchdog_classes;   /* mask: in a storm */
	uint8_t round_class;        /* of the scheduler */
	uint8_t has_faults;
	struct fifo queue[MAX_CLASSES];
	int64_t wire_free_ns;
	int64_t next_start_ns;      /* when the wire is free: the next frame begins; NEVER */
	int64_t announce_since_ns;
	int64_t refresh_ns;         /* the next PFC frame of a pause that goes on; NEVER */
	int64_t drain_free_ns;
	uint64_t lossy_bytes;       /* queued or serialising, not charged to an ingress */
	uint64_t receive_bytes;
	uint64_t random;            /* of marking */
	struct port_config config;
	struct ingress ingress[MAX_CLASSES];
	struct egress egress[MAX_CLASSES];
	struct faults faults;
};

struct switch_state {
	struct switch_config config;
	uint8_t spray;
	uint64_t lossy_bytes;       /* of the lossy pool */
	uint64_t lossless_bytes;    /* of the lossless pool */
	uint16_t port[256];         /* OpenFlow number -> port; UINT16_MAX: none */
};

/* What one switch remembers of one flow. */
struct flow_at_switch {
	int64_t last_seen_ns;
	uint32_t flowlet;
	uint32_t out_port;   /* NONE: has not left it yet */
	uint16_t slot;       /* SLOTS_PER_SWITCH: none */
};

struct fabric {
	struct fabric_config config;
	struct telemetry telemetry;
	struct port *port;
	struct switch_state *sw;
	uint64_t *active;                /* bitmap of ports where something will happen */
	struct packet *packet;
	uint8_t *frames;                 /* packet i's bytes at i * frame_stride */
	uint32_t frame_stride;
	uint32_t free_packets;           /* list head */
	uint64_t *flow_digest;           /* [flows]; 0: unused index slot */
	uint32_t *flow_index;            /* open addressing, [2 * flows], NONE: empty */
	struct flow_at_switch *at_switch; /* [flows][switches] */
	struct fabric_out *out;
	uint32_t outs;
	uint8_t gateway_mac[6];
	int64_t now_ns;
	uint64_t epoch;                  /* now_ns in microseconds >> EPOCH_SHIFT_US */
	int64_t watchdog_next_ns;
	int64_t series_interval_ns, series_next_ns;
};

/* tm.c */
void fifo_push(struct fabric *f, struct fifo *q, uint32_t packet);
uint32_t fifo_pop(struct fabric *f, struct fifo *q);
enum drop_reason tm_admit(const struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len, uint32_t ingress);
void tm_enqueue(struct fabric *f, uint32_t port, uint32_t packet);
/* Frames that were sent and begun at this port up to `until_ns`. */
void tm_serve(struct fabric *f, uint32_t port, int64_t until_ns);
/* Something is to happen at the port, from at_ns on. */
void tm_wake(struct fabric *f, uint32_t port, int64_t at_ns);
void tm_land(struct fabric *f, uint32_t port);
void tm_advance_port(struct fabric *f, uint32_t port);
int64_t tm_next_ns(const struct fabric *f, uint32_t port);
/* Drops all frames of a queue. */
void tm_flush(struct fabric *f, uint32_t port, uint32_t traffic_class, enum drop_reason reason, int64_t at_ns);

/* scheduler.c */
void scheduler_configure(struct fabric *f, struct port *p);
uint32_t scheduler_pick(const struct fabric *f, struct port *p, uint32_t eligible);

/* buffer.c */
enum drop_reason buffer_admit_egress(const struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len);
/* Charges a frame that arrives at `port`, or says why there is no room. */
enum drop_reason buffer_charge(struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len, int64_t at_ns);
void buffer_release(struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len, int64_t at_ns);
/* A charged frame goes into the switch. */
void buffer_goes_in(struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len);
/* It came out: returns the port that it is charged to, or NONE. */
uint32_t buffer_came_out(struct fabric *f, uint32_t sw, const struct frame_metadata *m, uint32_t traffic_class, uint32_t len);
void buffer_write_off(struct fabric *f);
int buffer_above_xoff(const struct fabric *f, uint32_t port, uint32_t traffic_class);
int buffer_below_xon(const struct fabric *f, uint32_t port, uint32_t traffic_class);
/* Port of the same switch in whose queue most of the bytes stand that are charged to (port, class); NONE. */
uint32_t buffer_holder(const struct fabric *f, uint32_t port, uint32_t traffic_class);

/* ecn.c */
void ecn_mark(struct fabric *f, uint32_t port, uint32_t packet, uint8_t ecn);

/* pfc.c */
void pfc_occupancy_changed(struct fabric *f, uint32_t port, uint32_t traffic_class, int64_t at_ns);
void pfc_from_device(struct fabric *f, uint32_t port, const uint8_t *frame, uint32_t len, int64_t at_ns);
void pfc_write(struct fabric *f, uint32_t port, uint32_t packet, int64_t at_ns);
void pfc_arrived(struct fabric *f, uint32_t port, uint32_t packet, int64_t at_ns);
void pfc_storm(struct fabric *f, uint32_t port, uint8_t classes);
void pfc_advance(struct fabric *f, uint32_t port);
int64_t pfc_next_ns(const struct port *p);

/* watchdog.c */
void watchdog_poll(struct fabric *f);
int watchdog_drops(const struct fabric *f, const struct port *p, uint32_t traffic_class);

/* credits.c */
uint32_t credit_units(uint32_t len);
int credits_suffice(const struct fabric *f, const struct port *p, uint32_t traffic_class);
void credits_stalled(struct fabric *f, struct port *p, uint32_t traffic_class, int64_t at_ns);
void credits_spend(struct fabric *f, struct port *p, uint32_t traffic_class, uint32_t len, int64_t at_ns);
/* Room for `units` is free again at `port` (or was never taken: the frame was lost on the link). */
void credits_free(struct fabric *f, uint32_t port, uint32_t traffic_class, uint64_t units, int64_t at_ns);
void credits_configure(struct fabric *f, uint32_t port);
void credits_repeat(struct fabric *f, uint32_t port);
void credits_write(struct fabric *f, uint32_t port, uint32_t packet);
void credits_arrived(struct fabric *f, uint32_t port, uint32_t packet, int64_t at_ns);

/* receiver.c: a host whose NIC drains slowly */
int receiver_in_use(const struct port *p);
void receiver_take(struct fabric *f, uint32_t port, uint32_t packet);
void receiver_drain(struct fabric *f, uint32_t port);
void receiver_set_drain(struct fabric *f, uint32_t port, int64_t drain_bps);

/* faults.c: the frame, at the end of its flight, is lost */
int faults_lose(struct fabric *f, uint32_t port, const struct packet *packet);

/* flow_table.c; `flow` may be NONE everywhere */
uint32_t flow_lookup(struct fabric *f, const struct flow_key *key, uint64_t digest);
/* Fills the hashes and the slot that the switch writes into a frame of this flow now. */
void flow_enters_switch(struct fabric *f, uint32_t sw, uint32_t flow, uint64_t digest, uint32_t len, struct frame_metadata *m);
void flow_leaves_switch(struct fabric *f, uint32_t sw, uint32_t flow, uint32_t psn, uint32_t port);

/* fabric.c */
uint32_t packet_allocate(struct fabric *f, enum packet_kind kind);
void packet_free(struct fabric *f, uint32_t packet);
/* Counts and records a frame that is lost at `port`; `packet` need not be one of the pool. */
void fabric_drop(struct fabric *f, uint32_t port, enum drop_reason reason, const struct packet *packet);

/* delivery.c */
/* The frame has reached the far end of the link that begins at from_port. */
void fabric_deliver(struct fabric *f, uint32_t from_port, uint32_t packet);
/* Dresses the frame for the device at `port` and puts it out. */
void fabric_hand_over(struct fabric *f, uint32_t port, uint32_t packet);

static inline uint8_t *packet_frame(struct fabric *f, uint32_t packet)
{
	return f->frames + (size_t)packet * f->frame_stride;
}

/* Time on the wire of a frame without FCS. */
static inline int64_t wire_ns(const struct port *p, uint32_t len)
{
	return ((int64_t)len + ETHERNET_OVERHEAD_BYTES) * 8 * NANOSECONDS / p->config.rate_bps;
}

static inline int is_lossless(const struct fabric *f, const struct port *p, uint32_t traffic_class)
{
	return f->config.flow_control != FLOW_CONTROL_NONE && (p->config.lossless_classes >> traffic_class & 1);
}

static inline struct telemetry_priority_group *priority_group(const struct fabric *f, const struct port *p, uint32_t c)
{
	return &f->telemetry.port[p - f->port].priority_group[c];
}

/* xorshift64* (Vigna, ACM TOMS 2016): a stream of its own wherever chance decides. */
static inline uint64_t random_next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

#endif
