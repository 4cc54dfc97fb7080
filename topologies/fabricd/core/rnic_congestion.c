/*
 * What the network says to the NIC: marks, notifications, pauses.
 *
 * Notification point.  A data packet that comes in with "congestion experienced" makes its queue pair send a
 * CNP at once, and then no other one for cnp_interval; if there was a marked packet meanwhile, one more
 * follows at the interval's end (SIGCOMM 2015, figure 5).  The interval counts from when the CNP
 * goes out.
 *
 * Reaction point.  dcqcn.h is the state machine; here it gets its CNPs and bytes, and holds the queue
 * pair's packets back.  A packet may go out when its queue pair's debt is paid by the time that the wire takes
 * it.  Time lost to a late tick, or to other queue pairs' turns, is made up for, up to CREDIT_FRAMES;
 * time in which the queue pair had nothing to send is not.
 *
 * Marks on ACKs are ignored.  A queue pair without congestion control sends no CNPs and ignores them.
 */
#include "rnic_internal.h"

#include <errno.h>

#define CREDIT_FRAMES 4
/* The wire's clock rounds to whole nanoseconds: a queue pair at line rate must not miss its turn by one. */
#define EARLY_SHARE 64 /* of one MTU time */

static double rate_argument(int64_t value)
{
	return (double)value / CONTROL_RATE_UNITS;
}

static double fraction_argument(int64_t value)
{
	return (double)value / CONTROL_FRACTION_UNITS;
}

static int times_in_range(const int64_t *arg, int first, int last)
{
	for (int i = first; i <= last; i++)
		if (arg[i] < 0 || arg[i] > MAX_TIMEOUT_NS)
			return 0;
	return 1;
}

void congestion_reset(struct rnic *nic, struct rnic_qp *qp)
{
	nic->notifying &= ~(1ull << qp->slot);
	qp->cnp_window_ns = INT64_MIN;
	qp->cnp_due_ns = NEVER;
	qp->blocked = 1;
	if (qp->congestion_control) {
		struct dcqcn_params params = qp->dcqcn.params;
		dcqcn_init(&qp->dcqcn, &params, nic->now_ns);
	}
}

int congestion_set(struct rnic *nic, struct rnic_qp *qp, const int64_t *arg)
{
	struct dcqcn_params params = {
		.max_rate = arg[2] ? rate_argument(arg[2]) : nic->config.rate_bps,
		.min_rate = rate_argument(arg[3]),
		.ai_rate = rate_argument(arg[4]),
		.hai_rate = rate_argument(arg[5]),
		.first_rate = rate_argument(arg[6]),
		.g = fraction_argument(arg[7]),
		.initial_alpha = fraction_argument(arg[8]),
		.min_dec_fac = fraction_argument(arg[9]),
		.gd = fraction_argument(arg[10]),
		.alpha_period_ns = arg[11],
		.reduce_period_ns = arg[12],
		.time_reset_ns = arg[13],
		.byte_reset = (uint64_t)arg[14],
		.threshold = (uint32_t)arg[15],
		.flags = (uint32_t)arg[16],
		.credit_bits = CREDIT_FRAMES * (double)nic->mtu_time_ns * 8 / nic->ns_per_byte,
	};

	if (arg[1] != 0 && arg[1] != 1)
		return -EINVAL;
	if (arg[1] == 1) {
		if (params.max_rate > nic->config.rate_bps)
			params.max_rate = nic->config.rate_bps;
		if (!times_in_range(arg, 11, 13) || !times_in_range(arg, 17, 17) || arg[14] < 0 || arg[15] < 0 ||
		    arg[15] > UINT16_MAX || arg[16] < 0 || arg[16] > 7 || !dcqcn_valid(&params))
			return -EINVAL;
		qp->dcqcn.params = params;
		qp->cnp_interval_ns = arg[17];
	}
	qp->congestion_control = arg[1] == 1;
	congestion_reset(nic, qp);
	if (qp->state == IBV_QPS_RTS)
		nic->ready |= 1ull << qp->slot;
	return 0;
}

static void trace(struct rnic *nic, const struct rnic_qp *qp, enum dcqcn_change change)
{
	const struct dcqcn *d = &qp->dcqcn;

	if (change != DCQCN_UNCHANGED)
		rnic_trace_at(nic, qp, d->at_ns, TRACE_RATE, (uint8_t)change, 0, (uint32_t)(d->alpha * 1e6 + 0.5),
		              (int64_t)(d->rate + 0.5));
}

static void settle(struct rnic *nic, struct rnic_qp *qp)
{
	enum dcqcn_change change;

	while ((change = dcqcn_step(&qp->dcqcn, nic->now_ns)) != DCQCN_UNCHANGED)
		trace(nic, qp, change);
}

void congestion_query(struct rnic *nic, struct rnic_qp *qp, int64_t *result)
{
	double rate = nic->config.rate_bps, target = rate, alpha = 0;

	if (qp->congestion_control) {
		settle(nic, qp);
		rate = qp->dcqcn.rate;
		target = qp->dcqcn.target;
		alpha = qp->dcqcn.alpha;
	}
	result[0] = (int64_t)(rate * CONTROL_RATE_UNITS + 0.5);
	result[1] = (int64_t)(target * CONTROL_RATE_UNITS + 0.5);
	result[2] = (int64_t)(alpha * CONTROL_FRACTION_UNITS + 0.5);
}

static void owe_cnp(struct rnic *nic, struct rnic_qp *qp)
{
	qp->cnp_due_ns = NEVER;
	nic->notifying |= 1ull << qp->slot;
}

void congestion_marked(struct rnic *nic, struct rnic_qp *qp)
{
	nic->count->np_ecn_marked_roce_packets++;
	if (!qp->congestion_control || nic->notifying & 1ull << qp->slot)
		return;
	if (nic->now_ns >= qp->cnp_window_ns) {
		owe_cnp(nic, qp);
		return;
	}
	qp->cnp_due_ns = qp->cnp_window_ns;
	rnic_timer(nic, qp, qp->cnp_due_ns);
}

void congestion_timer(struct rnic *nic, struct rnic_qp *qp)
{
	if (qp->cnp_due_ns <= nic->now_ns)
		owe_cnp(nic, qp);
}

uint32_t congestion_reply(struct rnic *nic, struct rnic_qp *qp, int64_t start_ns)
{
	nic->notifying &= ~(1ull << qp->slot);
	qp->cnp_window_ns = start_ns + qp->cnp_interval_ns;
	nic->count->np_cnp_sent++;
	return packet_cnp(nic, qp);
}

void congestion_notified(struct rnic *nic, struct rnic_qp *qp)
{
	if (!qp->congestion_control) {
		nic->count->rp_cnp_ignored++;
		return;
	}
	nic->count->rp_cnp_handled++;
	settle(nic, qp);
	trace(nic, qp, dcqcn_cnp(&qp->dcqcn));
}

int congestion_allows(struct rnic *nic, struct rnic_qp *qp, int64_t start_ns, int64_t *wake_ns)
{
	if (!qp->congestion_control)
		return 1;
	settle(nic, qp);
	if (qp->blocked)
		dcqcn_forfeit(&qp->dcqcn);
	qp->blocked = 0;
	if (dcqcn_ready_ns(&qp->dcqcn) <= start_ns + nic->mtu_time_ns / EARLY_SHARE)
		return 1;
	*wake_ns = dcqcn_wake_ns(&qp->dcqcn);
	return 0;
}

void congestion_sent(struct rnic *nic, struct rnic_qp *qp, uint32_t frame_bytes)
{
	if (qp->congestion_control)
		trace(nic, qp, dcqcn_sent(&qp->dcqcn, frame_bytes + WIRE_EXTRA_BYTES));
}

static int is_paused(const struct rnic *nic, uint32_t dscp)
{
	return nic->paused_classes >> nic->dscp_class[dscp] & 1;
}

void congestion_classify(struct rnic *nic, struct rnic_qp *qp)
{
	uint64_t bit = 1ull << qp->slot;
	uint64_t was_paused = nic->data_paused & bit;

	nic->data_paused = (nic->data_paused & ~bit) | (is_paused(nic, qp->tos >> 2) ? bit : 0);
	nic->ack_paused = (nic->ack_paused & ~bit) | (is_paused(nic, qp->ack_tos >> 2) ? bit : 0);
	if (was_paused)
		qp->blocked = 1;
}

void rnic_set_paused(struct rnic *nic, uint32_t class_mask)
{
	if (class_mask == nic->paused_classes)
		return;
	nic->paused_classes = class_mask;
	nic->cnp_paused = is_paused(nic, nic->config.cnp_dscp ? nic->config.cnp_dscp : RNIC_CNP_DSCP);
	for (uint32_t i = 0; i < VERBS_MAX_QPS; i++)
		congestion_classify(nic, &nic->qp[i]);
}
