/*
 * Inside the NIC: the state that rnic.c (scheduling, receiving), rnic_control.c (objects),
 * rnic_requester.c, rnic_responder.c, rnic_congestion.c and rnic_packet.c work on.  Nobody else includes this.
 *
 * PSNs are kept as 64-bit counts whose low 24 bits go on the wire, so that "before" and "after" are
 * plain comparisons; a PSN that comes in is placed by its distance from the one that is awaited.
 *
 * Sets of queue pairs are 64-bit masks, bit = slot.  Nothing that happens per packet or per
 * tick looks at queue pairs that are not in one of them.
 */
#ifndef STRAGGLER_RNIC_INTERNAL_H
#define STRAGGLER_RNIC_INTERNAL_H

#include "rnic.h"

#define RNIC_MAX_PDS 64
#define RNIC_MAX_MRS 256
#define RNIC_MAX_MESSAGE_BYTES 0x80000000u
#define RNIC_MAX_UNACKED 0x400000u /* packets; half of what 24 bits can tell from old ones */
#define PSN_MASK 0xffffffu
#define NEVER INT64_MAX

/* What a frame occupies on the wire beyond the bytes that tcpdump shows: preamble 8, FCS 4, gap 12. */
#define WIRE_EXTRA_BYTES 24
#define HEADER_BYTES 54u  /* Ethernet 14, IPv4 20, UDP 8, BTH 12 */
#define RETH_BYTES 16u
#define AETH_BYTES 4u
#define IMMDT_BYTES 4u
#define CNP_BYTES 16u      /* reserved, zero */
#define FRAME_BYTES (HEADER_BYTES + RETH_BYTES + IMMDT_BYTES + RNIC_MAX_MTU + 3 + 4)

enum bth_opcode {
	RC_WRITE_FIRST = 0x06,
	RC_WRITE_MIDDLE = 0x07,
	RC_WRITE_LAST = 0x08,
	RC_WRITE_LAST_IMM = 0x09,
	RC_WRITE_ONLY = 0x0a,
	RC_WRITE_ONLY_IMM = 0x0b,
	RC_ACKNOWLEDGE = 0x11,
	CNP_OPCODE = 0x81,
};

enum aeth_syndrome {
	AETH_ACK = 0x1f,           /* end-to-end credits not used */
	AETH_RNR_NAK = 0x20,       /* plus the timer code */
	AETH_NAK_SEQUENCE = 0x60,
	AETH_NAK_INVALID_REQUEST = 0x61,
	AETH_NAK_REMOTE_ACCESS = 0x62,
	AETH_NAK_REMOTE_OPERATION = 0x63,
};

/* A packet that has been parsed and whose ICRC is right; pointers go into the frame. */
struct rnic_packet {
	uint8_t opcode;
	uint8_t ack_request;
	uint8_t congested;         /* ECN: congestion experienced */
	uint8_t syndrome;          /* AETH */
	uint32_t src_ip;
	uint32_t dest_qp;
	uint32_t psn;
	uint32_t msn;              /* AETH */
	uint64_t remote_addr;      /* RETH */
	uint32_t rkey, dma_length; /* RETH */
	uint32_t imm_data;
	const uint8_t *payload;
	uint32_t payload_bytes;    /* without pad */
};

enum parse_result { PARSE_OK, PARSE_NOT_OURS, PARSE_BAD_PACKET, PARSE_BAD_ICRC };

struct rnic_mr {
	uint32_t used, key, pd, access;
	uint64_t offset, length;
	uint8_t generation;        /* low byte of the key, so that a key does not outlive its region */
};

struct rnic_cq {
	struct verbs_completion_queue *ring;
	uint32_t used, depth, producer;
};

/* A send request, taken by value from the ring, from its first packet to its last ACK. */
struct rnic_wqe {
	struct verbs_send_wr wr;
	uint64_t first_psn;
	uint64_t first_byte;       /* payload bytes of this queue pair before it */
	int64_t first_tx_ns;
	uint32_t packets;
	uint32_t error;            /* ibv_wc_status with which it will complete; it has no packets then */
};

struct rnic_qp {
	uint32_t used, slot, qp_num, state;
	uint32_t pd, send_cq, recv_cq, access, signal_all;
	uint32_t generation;
	struct verbs_queue_pair *ring;
	struct rnic_wqe *sq;       /* [VERBS_SEND_DEPTH] */

	uint32_t remote_ip, remote_qp, mtu;
	uint16_t src_port;
	uint8_t dscp, tos, ack_tos;
	uint32_t ip_sum;           /* of the header template, type of service, length and checksum left out */
	uint8_t header[HEADER_BYTES];

	/* Requester.  Requests: done <= cursor <= fetched; packets: una <= send_psn <= sent_end. */
	uint32_t done, cursor, fetched;
	uint64_t una, send_psn, sent_end;
	uint64_t next_psn, next_byte;        /* of the next request to be fetched */
	uint64_t una_byte, send_byte;
	uint64_t window_bytes;
	uint64_t asked_end;                  /* one after the last packet that asked for an ACK */
	uint32_t ack_every, since_ask;
	uint32_t retry_count, retries_left, rnr_retry, rnr_retries_left;
	int64_t timeout_ns;
	int64_t deadline_ns;                 /* retransmission timer */
	int64_t hold_ns;                     /* RNR: nothing is sent before */
	int64_t wake_ns;                     /* when to become ready again */
	uint8_t retransmit_reason;

	/* Responder. */
	uint32_t recv_consumer;
	uint64_t expected;
	uint32_t msn;
	uint8_t in_message, gap_reported, ack_due, nak_due, nak_syndrome, rnr_code;
	uint32_t nak_psn;
	uint32_t write_rkey;
	uint64_t write_addr;
	uint32_t write_left, write_length;

	/* Congestion control: reaction point, notification point. */
	uint8_t congestion_control;
	uint8_t blocked;                     /* did not send for another reason than its rate */
	struct dcqcn dcqcn;
	int64_t cnp_interval_ns;
	int64_t cnp_window_ns;               /* no CNP before */
	int64_t cnp_due_ns;                  /* a packet was marked meanwhile, so one goes out then */
};

struct rnic {
	struct rnic_config config;
	struct telemetry *telemetry;
	struct telemetry_nic *count;
	struct verbs_header *shared;
	uint8_t *arena;
	int64_t now_ns;
	int64_t tx_free_ns;        /* when the wire is free again */
	int64_t mtu_time_ns;
	double ns_per_byte;
	uint64_t ready;            /* queue pairs that may have a packet to send */
	uint64_t replying;         /* ... that owe an ACK or a NAK */
	uint64_t notifying;        /* ... that owe a CNP */
	uint64_t timed;            /* ... with a deadline, a wake-up or a CNP to come */
	uint64_t data_paused, ack_paused; /* ... whose data, whose ACKs the network does not want now */
	uint32_t paused_classes;
	int cnp_paused;
	uint8_t dscp_class[64];
	int64_t next_timer_ns;     /* no timer fires earlier */
	uint32_t last_sender, last_replier, last_notifier; /* round robin */
	int event;
	uint8_t pd_used[RNIC_MAX_PDS];
	struct rnic_mr mr[RNIC_MAX_MRS];
	struct rnic_cq cq[VERBS_MAX_CQS];
	struct rnic_qp qp[VERBS_MAX_QPS];
	uint8_t frame[FRAME_BYTES];
	struct rnic_wqe sq[VERBS_MAX_QPS][VERBS_SEND_DEPTH]; /* last: untouched pages cost nothing */
};

/* rnic.c */
struct rnic_qp *rnic_find_qp(struct rnic *nic, uint32_t qp_num);
void rnic_timer(struct rnic *nic, struct rnic_qp *qp, int64_t at_ns);
void rnic_trace(struct rnic *nic, const struct rnic_qp *qp, uint8_t kind, uint8_t reason, uint64_t psn, uint32_t bytes,
                int64_t wait_ns);
/* The same for something that happened at `t_ns`. */
void rnic_trace_at(struct rnic *nic, const struct rnic_qp *qp, int64_t t_ns, uint8_t kind, uint8_t reason, uint64_t psn,
                   uint32_t bytes, int64_t wait_ns);
void rnic_complete(struct rnic *nic, struct rnic_qp *qp, uint32_t cq, const struct verbs_wc *wc);
void rnic_set_state(struct rnic_qp *qp, uint32_t state);
/* To IBV_QPS_ERR, because of `status`: everything posted is flushed. */
void rnic_fail_qp(struct rnic *nic, struct rnic_qp *qp, uint32_t status);
/* The same, but the oldest send request is to blame and completes with `status`. */
void rnic_fail_send(struct rnic *nic, struct rnic_qp *qp, uint32_t status);
void rnic_flush(struct rnic *nic, struct rnic_qp *qp);

/* rnic_control.c: the bytes that `key` lets `pd` touch at `addr`, or NULL. */
uint8_t *rnic_resolve(struct rnic *nic, uint32_t pd, uint32_t key, uint64_t addr, uint64_t length, uint32_t access);

/* rnic_requester.c */
void requester_start(struct rnic_qp *qp, uint64_t first_psn);
/* The queue pair's next packet into nic->frame; its length, or 0: nothing may be sent now (and `ready` is cleared). */
uint32_t requester_next(struct rnic *nic, struct rnic_qp *qp, int64_t start_ns);
void requester_acknowledge(struct rnic *nic, struct rnic_qp *qp, const struct rnic_packet *packet);
void requester_timeout(struct rnic *nic, struct rnic_qp *qp);

/* rnic_responder.c */
void responder_request(struct rnic *nic, struct rnic_qp *qp, const struct rnic_packet *packet);
/* The next ACK or NAK that is due into nic->frame; its length. */
uint32_t responder_reply(struct rnic *nic, struct rnic_qp *qp);

/* rnic_congestion.c */
#define MAX_TIMEOUT_NS 1000000000000000 /* eleven days; sums with the clock stay far from overflow */
int congestion_set(struct rnic *nic, struct rnic_qp *qp, const int64_t *arg);
void congestion_query(struct rnic *nic, struct rnic_qp *qp, int64_t *result);
/* All that is known of the network is forgotten; parameters stay. */
void congestion_reset(struct rnic *nic, struct rnic_qp *qp);
/* Which of the NIC's masks of paused queue pairs it belongs to. */
void congestion_classify(struct rnic *nic, struct rnic_qp *qp);
/* A data packet arrived with congestion experienced. */
void congestion_marked(struct rnic *nic, struct rnic_qp *qp);
void congestion_notified(struct rnic *nic, struct rnic_qp *qp);
/* The queue pair's CNP into nic->frame; its length. */
uint32_t congestion_reply(struct rnic *nic, struct rnic_qp *qp, int64_t start_ns);
void congestion_timer(struct rnic *nic, struct rnic_qp *qp);
/* May a packet that goes out at `start_ns` be sent?  If not, *wake_ns says when to ask again. */
int congestion_allows(struct rnic *nic, struct rnic_qp *qp, int64_t start_ns, int64_t *wake_ns);
void congestion_sent(struct rnic *nic, struct rnic_qp *qp, uint32_t frame_bytes);

/* rnic_packet.c */
enum parse_result packet_parse(const struct rnic *nic, const uint8_t *frame, uint32_t len, struct rnic_packet *packet);
void packet_prepare(const struct rnic *nic, struct rnic_qp *qp);
/* All three return the frame's length. */
uint32_t packet_write(struct rnic *nic, const struct rnic_qp *qp, const struct rnic_packet *packet, int solicited);
uint32_t packet_ack(struct rnic *nic, const struct rnic_qp *qp, uint64_t psn, uint8_t syndrome);
uint32_t packet_cnp(struct rnic *nic, const struct rnic_qp *qp);

#endif
