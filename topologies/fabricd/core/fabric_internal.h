/*
 * What the parts of the fabric share and nobody else sees.
 *
 *   fabric.c      memory, configuration, a frame's way in and out
 *   tm.c          traffic manager: admission, queues, serialising, flying
 *   flow_table.c  flows, each switch's slots and flowlets, path changes
 */
#ifndef STRAGGLER_FABRIC_INTERNAL_H
#define STRAGGLER_FABRIC_INTERNAL_H

#include "fabric.h"
#include "frame.h"

#define NONE UINT32_MAX

struct packet {
	uint32_t next;       /* in a queue, a line or the free list */
	uint32_t flow;       /* NONE when the flow table is full */
	uint32_t len, psn;
	uint32_t depth_seen; /* bytes in its queue when it came */
	uint32_t traffic_class;
	uint64_t digest;
	int64_t enqueued_ns, wait_ns;
	int64_t due_ns;      /* last bit sent, then: arrival at the far end */
};

struct fifo {
	uint32_t head, tail;
};

struct port {
	struct port_config config;
	struct fifo queue[MAX_CLASSES];
	struct fifo line;           /* frames between the two ends of the link */
	uint32_t serialising;       /* the frame on the wire, or NONE */
	int64_t wire_free_ns;
	uint64_t buffered_bytes;    /* queued or serialising */
	uint32_t waiting_frames;    /* queued, all classes */
};

struct switch_state {
	struct switch_config config;
	uint8_t spray;
	uint64_t buffered_bytes;
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
	uint64_t *active;                /* bitmap of ports with a frame queued, serialising or flying */
	struct packet *packet;
	uint8_t *frames;                 /* packet i's bytes at i * frame_stride */
	uint32_t frame_stride;
	uint32_t free_packets;           /* list head */
	uint64_t *flow_digest;           /* [flows]; 0: unused index slot */
	uint32_t *flow_index;            /* open addressing, [2 * flows], NONE: empty */
	struct flow_at_switch *at_switch; /* [flows][switches] */
	struct fabric_out *out;
	uint32_t outs;
	uint8_t dscp_class[64];
	uint8_t gateway_mac[6];
	int64_t now_ns;
	int64_t series_interval_ns, series_next_ns;
};

/* tm.c */
void tm_enqueue(struct fabric *f, uint32_t port, uint32_t packet);
enum drop_reason tm_admit(const struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len);
void tm_advance_port(struct fabric *f, uint32_t port);
int64_t tm_next_ns(const struct fabric *f, uint32_t port);

/* flow_table.c; `flow` may be NONE everywhere */
uint32_t flow_lookup(struct fabric *f, const struct flow_key *key, uint64_t digest);
/* Fills the hashes and the slot that the switch writes into a frame of this flow now. */
void flow_enters_switch(struct fabric *f, uint32_t sw, uint32_t flow, uint64_t digest, uint32_t len, struct frame_metadata *m);
void flow_leaves_switch(struct fabric *f, uint32_t sw, uint32_t flow, uint32_t psn, uint32_t port);

static inline uint8_t *packet_frame(struct fabric *f, uint32_t packet)
{
	return f->frames + (size_t)packet * f->frame_stride;
}

/* fabric.c */
uint32_t packet_allocate(struct fabric *f);
void packet_free(struct fabric *f, uint32_t packet);
void fabric_deliver(struct fabric *f, uint32_t from_port, uint32_t packet);

#endif
