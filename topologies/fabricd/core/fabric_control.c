/* What can be changed while the fabric runs. */
#include <errno.h>

#include "fabric_internal.h"

static double fraction(int64_t units)
{
	return (double)units / CONTROL_FRACTION_UNITS;
}

static int set_switch(struct fabric *f, uint32_t sw, const int64_t *arg)
{
	if (arg[0] >= 0)
		f->sw[sw].config.hash_seed = (uint64_t)arg[0];
	if (arg[1] >= 0)
		f->sw[sw].config.flowlet_gap_ns = arg[1];
	return 0;
}

static int set_port_up(struct fabric *f, uint32_t port, int up)
{
	int was_up = f->telemetry.port[port].up != 0;

	f->telemetry.port[port].up = (uint64_t)up;
	if (up && !was_up && f->config.flow_control == FLOW_CONTROL_CREDITS)
		credits_repeat(f, port);
	return 0;
}

static int set_ecn(struct fabric *f, uint32_t sw, const int64_t *arg)
{
	struct switch_config *config = &f->sw[sw].config;
	int64_t kmin = arg[0] >= 0 ? arg[0] : config->ecn_kmin_bytes, kmax = arg[1] >= 0 ? arg[1] : config->ecn_kmax_bytes;

	if (kmin > kmax || arg[2] > CONTROL_FRACTION_UNITS || arg[3] > UINT8_MAX)
		return -EINVAL;
	config->ecn_kmin_bytes = kmin;
	config->ecn_kmax_bytes = kmax;
	if (arg[2] >= 0)
		config->ecn_pmax = fraction(arg[2]);
	if (arg[3] >= 0)
		config->ecn_classes = (uint32_t)arg[3];
	return 0;
}

/* Frames that are charged already stay where they are; a pause that this makes or ends comes with the next frame. */
static int set_buffer(struct fabric *f, uint32_t sw, const int64_t *arg)
{
	struct switch_config *config = &f->sw[sw].config;

	if (arg[2] == 0 || arg[3] == 0)
		return -EINVAL;
	config->lossy_pool_bytes = arg[0] >= 0 ? arg[0] : config->lossy_pool_bytes;
	config->lossless_pool_bytes = arg[1] >= 0 ? arg[1] : config->lossless_pool_bytes;
	config->alpha = arg[2] >= 0 ? fraction(arg[2]) : config->alpha;
	config->xoff_alpha = arg[3] >= 0 ? fraction(arg[3]) : config->xoff_alpha;
	return 0;
}

static int set_port_buffer(struct fabric *f, uint32_t port, const int64_t *arg)
{
	struct port_config *config = &f->port[port].config;

	if (config->kind != DEVICE_SWITCH || (arg[0] >= 0 && arg[0] < (int64_t)f->config.frame_bytes))
		return -EINVAL;
	config->buffer_bytes = arg[0] >= 0 ? arg[0] : config->buffer_bytes;
	config->xoff_bytes = arg[1] >= 0 ? arg[1] : config->xoff_bytes;
	config->xon_offset_bytes = arg[2] >= 0 ? arg[2] : config->xon_offset_bytes;
	config->headroom_bytes = arg[3] >= 0 ? arg[3] : config->headroom_bytes;
	return 0;
}

static int set_drain(struct fabric *f, uint32_t port, int64_t drain_bps)
{
	if (f->port[port].config.kind != DEVICE_HOST || drain_bps < 0)
		return -EINVAL;
	receiver_set_drain(f, port, drain_bps);
	return 0;
}

static int set_bit_errors(struct fabric *f, uint32_t port, int64_t probability, int64_t seed)
{
	struct port *p = &f->port[port];

	if (probability < 0 || probability > CONTROL_FRACTION_UNITS)
		return -EINVAL;
	p->faults.error_threshold = (uint32_t)probability;
	p->faults.random = mix64((uint64_t)seed + 1) | 1;
	p->has_faults = p->faults.error_threshold > 0 || p->faults.lose > 0;
	return 0;
}

static int plant_drop(struct fabric *f, uint32_t port, const int64_t *arg)
{
	struct faults *faults = &f->port[port].faults;

	if (arg[0] < 0 || arg[0] > UINT32_MAX || arg[1] < 0 || arg[1] > UINT32_MAX || arg[2] < 0 || arg[3] < 0 ||
	    arg[4] < 0 || arg[4] > UINT32_MAX)
		return -EINVAL;
	faults->src_ip = (uint32_t)arg[0];
	faults->dst_ip = (uint32_t)arg[1];
	faults->let_through = (uint64_t)arg[2];
	faults->lose = (uint64_t)arg[3];
	faults->least_bytes = (uint32_t)arg[4];
	f->port[port].has_faults = 1;
	return 0;
}

static int pause_storm(struct fabric *f, uint32_t port, int64_t classes)
{
	if (f->config.flow_control != FLOW_CONTROL_PFC || classes < 0 || classes > UINT8_MAX)
		return -EINVAL;
	pfc_storm(f, port, (uint8_t)classes);
	return 0;
}

static void clear_watermarks_of_port(struct telemetry_port *port)
{
	uint32_t c;

	for (c = 0; c < MAX_CLASSES; c++) {
		struct telemetry_priority_group *group = &port->priority_group[c];

		port->queue[c].peak_bytes = port->queue[c].depth_bytes;
		group->watermark_bytes = group->curr_occupancy_bytes;
		group->xoff_room_watermark_bytes = group->xoff_room_curr_occupancy_bytes;
	}
}

static int clear_watermarks(struct fabric *f)
{
	uint32_t i;

	for (i = 0; i < f->config.ports; i++)
		clear_watermarks_of_port(&f->telemetry.port[i]);
	for (i = 0; i < f->config.switches; i++) {
		struct telemetry_switch *sw = &f->telemetry.sw[i];

		sw->buffer_peak_bytes = sw->buffer_used_bytes;
		sw->lossless_peak_bytes = sw->lossless_used_bytes;
		sw->headroom_peak_bytes = sw->headroom_used_bytes;
	}
	return 0;
}

static int execute(struct fabric *f, uint32_t op, uint32_t index, const int64_t *arg)
{
	int of_switch = op == FABRIC_SET_SWITCH || op == FABRIC_SET_ECN || op == FABRIC_SET_BUFFER;
	uint32_t limit = of_switch ? f->config.switches : f->config.ports;

	if (index >= limit && op != FABRIC_SERIES_INTERVAL && op != FABRIC_CLEAR_WATERMARKS)
		return -EINVAL;
	switch (op) {
	case FABRIC_SET_SWITCH:
		return set_switch(f, index, arg);
	case FABRIC_SET_PORT_UP:
		return set_port_up(f, index, arg[0] != 0);
	case FABRIC_SERIES_INTERVAL:
		if (arg[0] < 0)
			return -EINVAL;
		f->series_interval_ns = arg[0];
		f->series_next_ns = f->now_ns;
		return 0;
	case FABRIC_SET_ECN:
		return set_ecn(f, index, arg);
	case FABRIC_SET_BUFFER:
		return set_buffer(f, index, arg);
	case FABRIC_SET_DRAIN:
		return set_drain(f, index, arg[0]);
	case FABRIC_SET_BIT_ERRORS:
		return set_bit_errors(f, index, arg[0], arg[1]);
	case FABRIC_PLANT_DROP:
		return plant_drop(f, index, arg);
	case FABRIC_PAUSE_STORM:
		return pause_storm(f, index, arg[0]);
	case FABRIC_SET_PORT_BUFFER:
		return set_port_buffer(f, index, arg);
	case FABRIC_CLEAR_WATERMARKS:
		return clear_watermarks(f);
	default:
		return -EINVAL;
	}
}

void fabric_control(struct fabric *f, struct control_request *request)
{
	request->status = execute(f, request->op, request->index, request->arg);
}
