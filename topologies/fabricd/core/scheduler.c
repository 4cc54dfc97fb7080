/*
 * Which class is next: strict priority for some, the others share what is left by deficit round robin
 * (Shreedhar and Varghese, SIGCOMM 1995), in proportion to their ETS shares (IEEE 802.1Qaz).
 *
 * Shares count bytes on the wire.  A class that is held back (PFC, credits) keeps its deficit and gets nothing for
 * the time it was held; one whose queue is empty starts from 0.
 */
#include "fabric_internal.h"

/* The smallest share of those in use gets a full frame a round, so that every round serves every class. */
void scheduler_configure(struct fabric *f, struct port *p)
{
	int64_t frame = (int64_t)f->config.frame_bytes + ETHERNET_OVERHEAD_BYTES;
	uint8_t least = 100;
	uint32_t c, dscp, in_use = 0;

	for (dscp = 0; dscp < sizeof f->config.dscp_class; dscp++)
		in_use |= 1u << f->config.dscp_class[dscp] % MAX_CLASSES;
	in_use &= ~(uint32_t)p->config.strict_classes;
	for (c = 0; c < MAX_CLASSES; c++)
		if (in_use >> c & 1 && p->config.ets_share[c] < least)
			least = p->config.ets_share[c];
	for (c = 0; c < MAX_CLASSES; c++)
		p->egress[c].quantum = frame * p->config.ets_share[c] / least + 1;
}

static int64_t head_bytes(const struct fabric *f, const struct port *p, uint32_t c)
{
	return (int64_t)f->packet[p->queue[c].head].len + ETHERNET_OVERHEAD_BYTES;
}

/* `eligible`: mask of classes whose first frame may begin now, not empty. */
uint32_t scheduler_pick(const struct fabric *f, struct port *p, uint32_t eligible)
{
	uint32_t strict = eligible & p->config.strict_classes, c = p->round_class;

	if (strict != 0)
		return 31u - (uint32_t)__builtin_clz(strict);
	if ((eligible & (eligible - 1)) == 0)
		return (uint32_t)__builtin_ctz(eligible);
	while (!(eligible >> c & 1) || p->egress[c].deficit < head_bytes(f, p, c)) {
		if (!(p->waiting_classes >> c & 1))
			p->egress[c].deficit = 0;
		c = (c + 1) % MAX_CLASSES;
		if (eligible >> c & 1)
			p->egress[c].deficit += p->egress[c].quantum;
	}
	p->egress[c].deficit -= head_bytes(f, p, c);
	p->round_class = (uint8_t)c;
	return c;
}
