/*
 * Control requests: what the control thread asks of the real-time thread between two ticks.
 *
 * A request names its target (the fabric, or NIC number `index`), an operation of that target
 * and up to CONTROL_ARGS arguments; `status` comes back 0 or a negative errno, with results.  The
 * operations of a NIC are the slow path of libibverbs; their arguments are listed here.
 */
#ifndef STRAGGLER_CONTROL_H
#define STRAGGLER_CONTROL_H

#include <stdint.h>

#define CONTROL_ARGS 24
#define CONTROL_RESULTS 8

/* Real numbers travel as integers: rates in thousandths of a bit/s of the lab, fractions in units of 2^-30. */
#define CONTROL_RATE_UNITS 1000
#define CONTROL_FRACTION_UNITS 1073741824

enum control_target { CONTROL_FABRIC = 0, CONTROL_NIC = 1 };

struct control_request {
	uint32_t target;
	uint32_t index;
	uint32_t op;
	int32_t status;
	int64_t arg[CONTROL_ARGS];
	int64_t result[CONTROL_RESULTS];
};

/*
 * Operations of a NIC: arguments -> results, and the errors.  -ENOENT: no such object;
 * -EINVAL: a value out of range, or a change of state that ibverbs does not have.
 */
enum rnic_op {
	/* () -> pd.  -ENOSPC */
	RNIC_ALLOC_PD = 1,
	/* (pd).  -EBUSY: it still has regions or queue pairs */
	RNIC_DEALLOC_PD = 2,
	/* (pd, length in bytes, access flags) -> lkey, rkey, address, offset in the shared memory.
	 * -ENOMEM: no gap of that size in the arena; -ENOSPC: too many regions.  The contents are those
	 * that the arena had before. */
	RNIC_REG_MR = 3,
	/* (lkey) */
	RNIC_DEREG_MR = 4,
	/* (entries) -> cq, entries (rounded up to a power of two).  -ENOSPC */
	RNIC_CREATE_CQ = 5,
	/* (cq).  -EBUSY: a queue pair uses it */
	RNIC_DESTROY_CQ = 6,
	/* (pd, send cq, receive cq, 1: every send is signalled) -> QP number, slot.  -ENOSPC */
	RNIC_CREATE_QP = 7,
	/* (QP number, new state, ...), and by the new state:
	 *  IBV_QPS_INIT: access flags
	 *  IBV_QPS_RTR:  remote IPv4 address, remote QP number, first PSN to expect, path MTU in bytes (0: the
	 *                NIC's), RNR timer code 0..31, UDP source port (0: from the QP number), DSCP of its packets 0..63
	 *                (0: the NIC's)
	 *  IBV_QPS_RTS:  first PSN to send, timeout in ns of lab time (0: never), retry count 0..7, RNR retry
	 *                count 0..7 (7: for ever), window in bytes (0: none), ask for an ACK every so many
	 *                packets (0: RNIC_ACK_EVERY)
	 *  IBV_QPS_RESET and IBV_QPS_ERR: nothing */
	RNIC_MODIFY_QP = 8,
	/* (QP number) -> state, next PSN to send, next PSN expected, unacknowledged payload bytes, current
	 * rate, target rate, alpha (fraction; without DCQCN line rate, line rate and 0) */
	RNIC_QUERY_QP = 9,
	/* (QP number) */
	RNIC_DESTROY_QP = 10,
	/* (QP number, 1: on or 0: off, and, if on: largest rate (0: line rate, which it never exceeds), smallest rate,
	 * additive increase, hyper increase, rate after the first CNP (0: cut), fractions g, first alpha and
	 * smallest share that a cut leaves, divisor of alpha in a cut (fraction, 1 or more), alpha period, shortest
	 * time between two cuts, timer period (0: none) in ns, bytes of the byte counter (0: none),
	 * threshold, dcqcn_flags, and for what comes in: shortest time between two CNPs in ns).
	 * Both the sender's reaction and the receiver's CNPs; a rate begins anew with each call. */
	RNIC_SET_DCQCN = 11,
};

#endif
