/*
 * DCQCN's reaction point: the sending rate of one queue pair, cut by every congestion notification
 * packet (CNP) and raised again by a timer and a byte counter.
 *
 * Source: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section
 * 3.1; the parameters that the paper does not have are those of mlx5 (cong_control_r_roce_ecn_rp).
 *
 * Rates.  Both begin at max_rate.  A cut makes target = current, current *= 1 - alpha / gd.  An increase is
 * current = (current + target) / 2, and which one it is, the number of timer periods T and byte
 * periods B that were completed since the cut says: fast recovery while max(T, B) < threshold; hyper increase (target
 * += hai before) when min(T, B) > threshold; additive increase (target += ai before) otherwise.  The period that
 * brings the increase is counted after it, so `threshold` periods of a timer are fast recovery.  A
 * counter that is switched off counts as the other one does.
 *
 * alpha, `initial_alpha` with the first CNP, moves in one of two ways.  The paper (DCQCN_ALPHA_PER_CNP):
 * alpha = (1 - g) alpha + g behind each CNP's cut, and alpha = (1 - g) alpha after each alpha_period
 * without one.  mlx5: at the end of each alpha_period since the first CNP, one or the other.
 *
 * reduce_period is the shortest time between two cuts (0: each CNP cuts); a CNP that comes earlier cuts when it
 * is over.  mlx5 counts these periods on a grid and cuts at the end of one, that is, up to one later than here.
 *
 * Pacing is a debt in bits that sending raises and time pays off at the current rate, so that a change of
 * rate works at once, also on the packet that waits, and no rounding adds up.  A sender that comes late has credit,
 * at most credit_bits.
 *
 * Pure: time (ns of the lab's clock) is handed in.  Events happen at their own time, however late the
 * caller is: at the same time alpha comes first, then a cut, then an increase; what the caller does at that time
 * comes last.  Nothing here needs a call while nothing is sent.
 */
#ifndef STRAGGLER_DCQCN_H
#define STRAGGLER_DCQCN_H

#include <stdint.h>

enum dcqcn_flags {
	DCQCN_ALPHA_PER_CNP = 1,
	/* When a cut sets the target: always; or only if an increase by the byte counter was the last thing
	 * to happen to the rate; or, with the second one, if an increase of either kind was. */
	DCQCN_CLAMP_TARGET = 2,
	DCQCN_CLAMP_TARGET_AFTER_TIMER = 4,
};

/* What changed the rate; `reason` of TRACE_RATE. */
enum dcqcn_change {
	DCQCN_UNCHANGED = 0,
	DCQCN_CUT = 1,
	DCQCN_FAST_RECOVERY = 2,
	DCQCN_ADDITIVE_INCREASE = 3,
	DCQCN_HYPER_INCREASE = 4,
};

/* Lab bits/s, ns of lab time, bytes on the wire. */
struct dcqcn_params {
	double max_rate, min_rate;
	double ai_rate, hai_rate;
	double first_rate;         /* both rates after the first CNP, if they are not below it; 0: a cut like others */
	double g, initial_alpha;   /* 0..1 */
	double gd;                 /* 1 or more */
	double min_dec_fac;        /* a cut leaves at least this share of the rate, 0..1 */
	double credit_bits;
	int64_t alpha_period_ns;   /* above 0 */
	int64_t reduce_period_ns;
	int64_t time_reset_ns;     /* of the timer; 0: none */
	uint64_t byte_reset;       /* of the byte counter; 0: none.  One of both must be there */
	uint32_t threshold;
	uint32_t flags;            /* enum dcqcn_flags */
};

struct dcqcn {
	struct dcqcn_params params;
	double rate, target, alpha;
	double debt_bits;          /* below 0: credit */
	int64_t at_ns;             /* all that was due until then has happened */
	int64_t alpha_ns, timer_ns; /* next end of a period; INT64_MAX: not running */
	int64_t cut_ns;            /* when a CNP that came too early will cut */
	int64_t reduce_end_ns;     /* no cut before */
	uint64_t bytes;            /* in this period of the byte counter */
	uint32_t time_stage, byte_stage;
	uint8_t running;           /* there was a CNP */
	uint8_t cnp_in_period;     /* of alpha */
	uint8_t last_increase;     /* since the cut: 0, or by which counter */
};

/* 1 if the state machine can run with them. */
int dcqcn_valid(const struct dcqcn_params *params);
void dcqcn_init(struct dcqcn *d, const struct dcqcn_params *params, int64_t now_ns);

/*
 * Let time pass, to `now_ns` or to the first event that changed the rate (at d->at_ns): call it
 * until it returns DCQCN_UNCHANGED, and before anything below.
 */
enum dcqcn_change dcqcn_step(struct dcqcn *d, int64_t now_ns);

enum dcqcn_change dcqcn_cnp(struct dcqcn *d);
/* `bytes` of the wire go out.  The last change if there are several. */
enum dcqcn_change dcqcn_sent(struct dcqcn *d, uint32_t bytes);

/* When the next packet may begin if the rate stays as it is: d->at_ns or later. */
int64_t dcqcn_ready_ns(const struct dcqcn *d);
/* When to look again: then, or at an event before that changes the rate. */
int64_t dcqcn_wake_ns(const struct dcqcn *d);
/* The sender had nothing to send, or was not allowed to: time in which it stood still is no credit. */
void dcqcn_forfeit(struct dcqcn *d);

#endif
