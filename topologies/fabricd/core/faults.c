/* Links that lose frames: by chance, as bit errors do, or exactly those that an experiment has named. */
#include "fabric_internal.h"

static int planted(struct fabric *f, struct faults *faults, const struct packet *packet)
{
	const struct telemetry_flow *flow;

	if (faults->lose == 0 || packet->flow == NONE || packet->len < faults->least_bytes)
		return 0;
	flow = &f->telemetry.flow[packet->flow];
	if ((faults->src_ip != 0 && faults->src_ip != flow->src_ip) || (faults->dst_ip != 0 && faults->dst_ip != flow->dst_ip))
		return 0;
	if (faults->let_through > 0) {
		faults->let_through--;
		return 0;
	}
	faults->lose--;
	return 1;
}

int faults_lose(struct fabric *f, uint32_t port, const struct packet *packet)
{
	struct faults *faults = &f->port[port].faults;

	if (planted(f, faults, packet))
		return 1;
	return faults->error_threshold > 0 && random_next(&faults->random) >> 34 < faults->error_threshold;
}
