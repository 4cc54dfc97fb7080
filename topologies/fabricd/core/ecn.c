/*
 * ECN: marking on the instantaneous depth of the egress queue that a frame joins (DCQCN, SIGCOMM 2015,
 * section 3.1): never up to Kmin, with a probability that grows linearly to Pmax at Kmax, always above Kmax.
 * Depth is what stands before the frame.  Only frames of an ECN-capable transport are marked.
 */
#include "fabric_internal.h"

static int chosen(const struct switch_config *config, uint64_t depth, uint64_t *random)
{
	double kmin = (double)config->ecn_kmin_bytes, kmax = (double)config->ecn_kmax_bytes, q = (double)depth;

	if (q <= kmin)
		return 0;
	if (q > kmax)
		return 1;
	return (double)(random_next(random) >> 11) * 0x1p-53 < config->ecn_pmax * (q - kmin) / (kmax - kmin);
}

void ecn_mark(struct fabric *f, uint32_t port, uint32_t index, uint8_t ecn)
{
	struct port *p = &f->port[port];
	struct packet *packet = &f->packet[index];
	struct telemetry_queue *q = &f->telemetry.port[port].queue[packet->traffic_class];
	const struct switch_config *config = &f->sw[p->config.node].config;
	struct trace_record mark = {
		.t_ns = packet->enqueued_ns, .flow = packet->flow, .psn = packet->psn, .bytes = packet->len,
		.arg = (uint32_t)q->depth_bytes, .port = (uint16_t)port, .kind = TRACE_MARK,
		.reason = (uint8_t)packet->traffic_class,
	};

	if (!(config->ecn_classes >> packet->traffic_class & 1) || (ecn != ECN_ECT0 && ecn != ECN_ECT1) ||
	    !chosen(config, q->depth_bytes, &p->random))
		return;
	frame_set_ce(packet_frame(f, index));
	q->wred_ecn_marked_packets++;
	telemetry_trace(&f->telemetry, &mark);
}
