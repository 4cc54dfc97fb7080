/* See dcqcn.h.  All arithmetic is that of the paper, in the paper's order. */
#include "dcqcn.h"

#include <string.h>

#define NEVER INT64_MAX

enum { BY_TIMER = 1, BY_BYTES = 2 };

static int64_t earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

static double smaller(double a, double b)
{
	return a < b ? a : b;
}

/* Written so that a NaN fails, too. */
static int within(double value, double low, double high)
{
	return value >= low && value <= high;
}

int dcqcn_valid(const struct dcqcn_params *p)
{
	return within(p->min_rate, 1e-3, p->max_rate) && within(p->max_rate, p->min_rate, 1e15) &&
	       within(p->ai_rate, 0, 1e15) && within(p->hai_rate, 0, 1e15) && within(p->first_rate, 0, 1e15) &&
	       within(p->g, 0, 1) && within(p->initial_alpha, 0, 1) && within(p->gd, 1, 1e6) &&
	       within(p->min_dec_fac, 0, 1) && within(p->credit_bits, 0, 1e15) && p->alpha_period_ns > 0 &&
	       p->reduce_period_ns >= 0 && p->time_reset_ns >= 0 && (p->time_reset_ns > 0 || p->byte_reset > 0);
}

void dcqcn_init(struct dcqcn *d, const struct dcqcn_params *params, int64_t now_ns)
{
	memset(d, 0, sizeof *d);
	d->params = *params;
	d->rate = d->target = params->max_rate;
	d->alpha = params->initial_alpha;
	d->at_ns = now_ns;
	d->alpha_ns = d->timer_ns = d->cut_ns = NEVER;
	d->reduce_end_ns = INT64_MIN;
}

static void pass_time(struct dcqcn *d, int64_t to_ns)
{
	if (to_ns <= d->at_ns)
		return;
	double paid_bits = d->rate * (double)(to_ns - d->at_ns) / 1e9;
	d->debt_bits = larger(d->debt_bits - paid_bits, -d->params.credit_bits);
	d->at_ns = to_ns;
}

/* (1 - g)^n in few steps: a queue pair may have been silent for an hour. */
static double power(double base, uint64_t n)
{
	double result = 1;

	for (; n; n >>= 1, base *= base)
		if (n & 1)
			result *= base;
	return result;
}

/* All ends of alpha periods up to and with `until_ns`. */
static void run_alpha(struct dcqcn *d, int64_t until_ns)
{
	double keep = 1 - d->params.g;

	if (d->alpha_ns > until_ns)
		return;
	uint64_t periods = (uint64_t)(until_ns - d->alpha_ns) / (uint64_t)d->params.alpha_period_ns + 1;
	d->alpha_ns += (int64_t)periods * d->params.alpha_period_ns;
	if (d->cnp_in_period) {
		d->alpha = keep * d->alpha + d->params.g;
		d->cnp_in_period = 0;
		periods--;
	}
	d->alpha *= power(keep, periods);
}

/* Counting starts afresh. */
static void restart(struct dcqcn *d)
{
	d->time_stage = d->byte_stage = 0;
	d->bytes = 0;
	d->last_increase = 0;
	d->timer_ns = d->params.time_reset_ns ? d->at_ns + d->params.time_reset_ns : NEVER;
	d->reduce_end_ns = d->at_ns + d->params.reduce_period_ns;
	d->cut_ns = NEVER;
}

static enum dcqcn_change cut(struct dcqcn *d)
{
	const struct dcqcn_params *p = &d->params;
	double before = d->rate;

	if (p->flags & DCQCN_CLAMP_TARGET || d->last_increase == BY_BYTES ||
	    (p->flags & DCQCN_CLAMP_TARGET_AFTER_TIMER && d->last_increase == BY_TIMER))
		d->target = d->rate;
	d->rate = larger(p->min_rate, d->rate * larger(1 - d->alpha / p->gd, p->min_dec_fac));
	restart(d);
	return d->rate != before ? DCQCN_CUT : DCQCN_UNCHANGED;
}

static enum dcqcn_change increase(struct dcqcn *d, uint8_t by)
{
	const struct dcqcn_params *p = &d->params;
	uint32_t time_stage = p->time_reset_ns ? d->time_stage : d->byte_stage;
	uint32_t byte_stage = p->byte_reset ? d->byte_stage : d->time_stage;
	uint32_t first = time_stage > byte_stage ? time_stage : byte_stage;
	uint32_t last = time_stage < byte_stage ? time_stage : byte_stage;
	enum dcqcn_change change = DCQCN_FAST_RECOVERY;
	double before = d->rate;

	if (first >= p->threshold) {
		change = last > p->threshold ? DCQCN_HYPER_INCREASE : DCQCN_ADDITIVE_INCREASE;
		d->target = smaller(p->max_rate, d->target + (change == DCQCN_HYPER_INCREASE ? p->hai_rate : p->ai_rate));
	}
	d->rate = (d->rate + d->target) / 2;
	if (by == BY_TIMER)
		d->time_stage++;
	else
		d->byte_stage++;
	d->last_increase = by;
	return d->rate != before ? change : DCQCN_UNCHANGED;
}

enum dcqcn_change dcqcn_step(struct dcqcn *d, int64_t now_ns)
{
	enum dcqcn_change change = DCQCN_UNCHANGED;

	while (change == DCQCN_UNCHANGED) {
		int64_t due_ns = earlier(d->cut_ns, d->timer_ns);
		if (due_ns > now_ns) {
			run_alpha(d, now_ns);
			pass_time(d, now_ns);
			break;
		}
		run_alpha(d, due_ns);
		pass_time(d, due_ns);
		if (d->cut_ns == due_ns) {
			change = cut(d);
		} else {
			d->timer_ns += d->params.time_reset_ns;
			change = increase(d, BY_TIMER);
		}
	}
	return change;
}

static enum dcqcn_change first_cnp(struct dcqcn *d)
{
	d->running = 1;
	d->alpha = d->params.initial_alpha;
	d->alpha_ns = d->at_ns + d->params.alpha_period_ns;
	if (d->params.first_rate == 0)
		return cut(d);
	double before = d->rate;
	d->rate = d->target = larger(d->params.min_rate, smaller(d->rate, d->params.first_rate));
	restart(d);
	return d->rate != before ? DCQCN_CUT : DCQCN_UNCHANGED;
}

enum dcqcn_change dcqcn_cnp(struct dcqcn *d)
{
	enum dcqcn_change change = DCQCN_UNCHANGED;

	if (!d->running) {
		change = first_cnp(d);
	} else {
		d->cnp_in_period = !(d->params.flags & DCQCN_ALPHA_PER_CNP);
		if (d->at_ns < d->reduce_end_ns)
			d->cut_ns = d->reduce_end_ns;
		else
			change = cut(d);
	}
	if (d->params.flags & DCQCN_ALPHA_PER_CNP) {
		d->alpha = (1 - d->params.g) * d->alpha + d->params.g;
		d->alpha_ns = d->at_ns + d->params.alpha_period_ns;
	}
	return change;
}

enum dcqcn_change dcqcn_sent(struct dcqcn *d, uint32_t bytes)
{
	enum dcqcn_change change = DCQCN_UNCHANGED;

	d->debt_bits += bytes * 8.0;
	if (!d->running || !d->params.byte_reset)
		return change;
	d->bytes += bytes;
	while (d->bytes >= d->params.byte_reset) {
		d->bytes -= d->params.byte_reset;
		enum dcqcn_change one = increase(d, BY_BYTES);
		change = one != DCQCN_UNCHANGED ? one : change;
	}
	return change;
}

int64_t dcqcn_ready_ns(const struct dcqcn *d)
{
	if (d->debt_bits <= 0)
		return d->at_ns;
	double wait_ns = d->debt_bits * 1e9 / d->rate;
	int64_t whole_ns = (int64_t)wait_ns;
	return d->at_ns + whole_ns + ((double)whole_ns < wait_ns);
}

int64_t dcqcn_wake_ns(const struct dcqcn *d)
{
	return earlier(dcqcn_ready_ns(d), earlier(d->cut_ns, d->timer_ns));
}

void dcqcn_forfeit(struct dcqcn *d)
{
	d->debt_bits = larger(d->debt_bits, 0);
}
