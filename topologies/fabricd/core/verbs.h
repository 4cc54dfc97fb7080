/*
 * Verbs, fast path: the memory that a host's agent and its NIC share, and the calls that work on it.
 *
 * One block a NIC (a file under /dev/shm in a lab): header, queue pairs, completion queues, arena.  All
 * registered memory lies in the arena; an address is the arena's base, which differs from NIC to
 * NIC, plus the offset.  Names and numbers are those of libibverbs wherever it has the thing.
 *
 * Every ring has one producer and one consumer.  Indices count up for ever and are masked on use;
 * whoever fills entries publishes them by a release store of its index.  The NIC keeps its own
 * copies of all that it must be able to trust, and takes a work request by value: an agent that
 * scribbles on this memory harms its own queues and nobody else.
 *
 * One thread at a time may post to a queue pair, and one may poll a completion queue.
 *
 * Waiting for a completion without losing one:
 *     for (;;) {
 *         if (verbs_poll_cq(...) != 0) break;           (something, or an error)
 *         if (verbs_req_notify_cq(...) == 1) continue;  (came while arming: do not sleep)
 *         sleep until the event channel is readable, and drain it;
 *     }
 * The agent arms and then looks at the producer index; the NIC moves the index and then looks at
 * `armed`; both with a full barrier between, so at least one of them sees the other.
 */
#ifndef STRAGGLER_VERBS_H
#define STRAGGLER_VERBS_H

#include <stddef.h>
#include <stdint.h>

#define VERBS_MAGIC 0x53475642 /* "SGVB" */
#define VERBS_VERSION 1

#define VERBS_MAX_QPS 64
#define VERBS_MAX_CQS 64
#define VERBS_SEND_DEPTH 512
#define VERBS_RECV_DEPTH 512
#define VERBS_CQ_DEPTH 4096
#define VERBS_PAGE_BYTES 4096

enum ibv_qp_state {
	IBV_QPS_RESET = 0,
	IBV_QPS_INIT = 1,
	IBV_QPS_RTR = 2,
	IBV_QPS_RTS = 3,
	IBV_QPS_ERR = 6,
};

enum ibv_access_flags {
	IBV_ACCESS_LOCAL_WRITE = 1,
	IBV_ACCESS_REMOTE_WRITE = 2,
	IBV_ACCESS_REMOTE_READ = 4,
};

enum ibv_wr_opcode { IBV_WR_RDMA_WRITE = 0, IBV_WR_RDMA_WRITE_WITH_IMM = 1 };

enum ibv_send_flags { IBV_SEND_SIGNALED = 2, IBV_SEND_SOLICITED = 4 };

enum ibv_wc_status {
	IBV_WC_SUCCESS = 0,
	IBV_WC_LOC_LEN_ERR = 1,
	IBV_WC_LOC_QP_OP_ERR = 2,
	IBV_WC_LOC_PROT_ERR = 4,
	IBV_WC_WR_FLUSH_ERR = 5,
	IBV_WC_LOC_ACCESS_ERR = 8,
	IBV_WC_REM_INV_REQ_ERR = 9,
	IBV_WC_REM_ACCESS_ERR = 10,
	IBV_WC_REM_OP_ERR = 11,
	IBV_WC_RETRY_EXC_ERR = 12,
	IBV_WC_RNR_RETRY_EXC_ERR = 13,
};

enum ibv_wc_opcode { IBV_WC_RDMA_WRITE = 1, IBV_WC_RECV = 128, IBV_WC_RECV_RDMA_WITH_IMM = 129 };

enum ibv_wc_flags { IBV_WC_WITH_IMM = 2 };

struct verbs_send_wr {
	uint64_t wr_id;
	uint64_t addr;         /* of the payload, in this NIC's arena */
	uint64_t remote_addr;  /* in the peer's */
	int64_t earliest_ns;   /* wait-on-time: this request and those behind it stay until then; 0: at once */
	uint32_t length;       /* bytes, at most 2^31 */
	uint32_t lkey, rkey;
	uint32_t imm_data;     /* host byte order */
	uint32_t opcode;       /* ibv_wr_opcode */
	uint32_t send_flags;   /* ibv_send_flags */
	uint32_t reserved[2];
};

/* Consumed by a WRITE WITH IMMEDIATE, which places no data of its own here. */
struct verbs_recv_wr {
	uint64_t wr_id;
	uint64_t addr;
	uint32_t length, lkey;
	uint32_t reserved[2];
};

struct verbs_wc {
	uint64_t wr_id;
	int64_t timestamp_ns;  /* when the NIC completed it */
	uint32_t status;       /* ibv_wc_status; if not IBV_WC_SUCCESS only wr_id, qp_num and time are valid */
	uint32_t opcode;       /* ibv_wc_opcode */
	uint32_t byte_len;
	uint32_t imm_data;     /* host byte order, valid with IBV_WC_WITH_IMM */
	uint32_t qp_num;
	uint32_t src_qp;
	uint32_t wc_flags;     /* ibv_wc_flags */
	uint32_t reserved[5];
};

struct verbs_header {
	uint32_t magic, version;
	uint32_t nic, mtu_bytes;
	uint64_t bytes;        /* of the whole block */
	uint64_t qp_offset, cq_offset, arena_offset, arena_bytes;
	uint64_t arena_address; /* address of the arena's first byte */
	uint64_t reserved0[8];
	uint64_t doorbell;     /* bit n: queue pair n has something new; set by agents, cleared by the NIC */
	uint64_t reserved1[7];
};

/* Cache line by cache line: rarely written, written by the agent, written by the NIC. */
struct verbs_queue_pair {
	uint32_t qp_num, state, reserved0[14];
	uint32_t send_producer, recv_producer, reserved1[14];
	uint32_t send_consumer, recv_consumer, reserved2[14];
	struct verbs_send_wr send[VERBS_SEND_DEPTH];
	struct verbs_recv_wr recv[VERBS_RECV_DEPTH];
};

struct verbs_completion_queue {
	uint32_t depth, overrun, reserved0[14];
	uint32_t producer, reserved1[15];
	uint32_t consumer, armed, reserved2[14];
	struct verbs_wc entry[VERBS_CQ_DEPTH];
};

/* 0, or -EPROTO: not a block of this version; -ENODATA: `bytes` is less than the block says. */
int verbs_check(const void *shared, uint64_t bytes);

/*
 * Post `count` requests to the queue pair in `slot`.  Returns how many were taken (fewer when the
 * queue fills up), -ENOMEM when it was full, -EINVAL for a bad slot or a state that does not post
 * (sending takes IBV_QPS_RTS; receiving IBV_QPS_INIT or later; in IBV_QPS_ERR both are flushed).
 * A send entry is free again when it is acknowledged, signalled or not.
 */
int verbs_post_send(void *shared, uint32_t slot, const struct verbs_send_wr *wr, uint32_t count);
int verbs_post_recv(void *shared, uint32_t slot, const struct verbs_recv_wr *wr, uint32_t count);

/* Number of completions, 0 when there are none, -EOVERFLOW when the queue has overrun and is drained. */
int verbs_poll_cq(void *shared, uint32_t cq, struct verbs_wc *wc, uint32_t count);

/* Ask for an event with the next completion.  1: completions wait already, poll before sleeping; 0: none. */
int verbs_req_notify_cq(void *shared, uint32_t cq);

#endif
