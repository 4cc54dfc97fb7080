/*
 * A switch's memory: who may have how much of it.
 *
 * Lossy classes are limited where they leave: the port's own limit, then a pool that all
 * egress queues share with a dynamic threshold.  Lossless classes are limited where they came in: every
 * frame is charged to its (ingress port, class) from the moment it is delivered into the switch until its last bit
 * has left, also while it is inside the forwarding plane (whose MAC metadata says where it came in).  Up to XOFF
 * it takes from the lossless pool; from then on the peer is told to stop, and what still arrives goes into the
 * headroom of that port and class.  A frame that crosses XOFF is the last one below it, so headroom has to
 * take what the peer sends until it has stopped: 2 * delay * rate + 2 frames.  When headroom is full,
 * frames are dropped, and counted, as DROP_HEADROOM.
 *
 * With credits the same charges count what the advertised buffer holds, and nothing can arrive that has no room.
 */
#include <assert.h>

#include "fabric_internal.h"

/* A queue may hold alpha times what is still free: Choudhury and Hahne (IEEE/ACM ToN 1998). */
enum drop_reason buffer_admit_egress(const struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len)
{
	const struct port *p = &f->port[port];
	const struct switch_state *sw;
	uint64_t pool, depth;

	if (p->lossy_bytes + len > (uint64_t)p->config.buffer_bytes)
		return DROP_TAIL;
	if (p->config.kind != DEVICE_SWITCH)
		return DROP_NONE;
	sw = &f->sw[p->config.node];
	pool = (uint64_t)sw->config.lossy_pool_bytes;
	if (pool == 0)
		return DROP_NONE;
	depth = f->telemetry.port[port].queue[traffic_class].depth_bytes;
	if (sw->lossy_bytes + len > pool || (double)(depth + len) > sw->config.alpha * (double)(pool - sw->lossy_bytes))
		return DROP_SHARED;
	return DROP_NONE;
}

static uint64_t pool_free(const struct switch_state *sw)
{
	uint64_t pool = (uint64_t)sw->config.lossless_pool_bytes;

	return pool > sw->lossless_bytes ? pool - sw->lossless_bytes : 0;
}

/* XOFF of a port's classes: fixed, or the dynamic threshold on the lossless pool. */
static uint64_t xoff_bytes(const struct fabric *f, const struct port *p)
{
	const struct switch_state *sw;

	if (p->config.xoff_bytes > 0 || p->config.kind != DEVICE_SWITCH)
		return (uint64_t)p->config.xoff_bytes;
	sw = &f->sw[p->config.node];
	return (uint64_t)(sw->config.xoff_alpha * (double)pool_free(sw));
}

static int pool_has_room(const struct fabric *f, const struct port *p)
{
	return p->config.kind != DEVICE_SWITCH || f->sw[p->config.node].config.lossless_pool_bytes == 0 ||
	       pool_free(&f->sw[p->config.node]) > 0;
}

int buffer_above_xoff(const struct fabric *f, uint32_t port, uint32_t c)
{
	const struct port *p = &f->port[port];

	return p->ingress[c].headroom_bytes > 0 || p->ingress[c].bytes > xoff_bytes(f, p);
}

int buffer_below_xon(const struct fabric *f, uint32_t port, uint32_t c)
{
	const struct port *p = &f->port[port];
	const struct ingress *in = &p->ingress[c];

	return in->bytes == 0 ||
	       (in->headroom_bytes == 0 && in->bytes + (uint64_t)p->config.xon_offset_bytes <= xoff_bytes(f, p));
}

static void charge(struct fabric *f, uint32_t port, uint32_t c, int64_t pool, int64_t headroom)
{
	struct port *p = &f->port[port];
	struct ingress *in = &p->ingress[c];
	struct telemetry_priority_group *t = priority_group(f, p, c);

	in->bytes += (uint64_t)(pool + headroom);
	in->headroom_bytes += (uint64_t)headroom;
	t->curr_occupancy_bytes = in->bytes;
	t->xoff_room_curr_occupancy_bytes = in->headroom_bytes;
	if (in->bytes > t->watermark_bytes)
		t->watermark_bytes = in->bytes;
	if (in->headroom_bytes > t->xoff_room_watermark_bytes)
		t->xoff_room_watermark_bytes = in->headroom_bytes;
	if (p->config.kind == DEVICE_SWITCH) {
		struct telemetry_switch *s = &f->telemetry.sw[p->config.node];

		f->sw[p->config.node].lossless_bytes += (uint64_t)pool;
		s->lossless_used_bytes += (uint64_t)pool;
		s->headroom_used_bytes += (uint64_t)headroom;
		if (s->lossless_used_bytes > s->lossless_peak_bytes)
			s->lossless_peak_bytes = s->lossless_used_bytes;
		if (s->headroom_used_bytes > s->headroom_peak_bytes)
			s->headroom_peak_bytes = s->headroom_used_bytes;
	}
}

enum drop_reason buffer_charge(struct fabric *f, uint32_t port, uint32_t c, uint32_t len, int64_t at_ns)
{
	const struct port *p = &f->port[port];
	const struct ingress *in = &p->ingress[c];

	if (f->config.flow_control == FLOW_CONTROL_CREDITS) {
		charge(f, port, c, len, 0);
		return DROP_NONE;
	}
	if (in->bytes <= xoff_bytes(f, p) && pool_has_room(f, p))
		charge(f, port, c, len, 0);
	else if (in->headroom_bytes + len <= (uint64_t)p->config.headroom_bytes)
		charge(f, port, c, 0, len);
	else
		return DROP_HEADROOM;
	pfc_occupancy_changed(f, port, c, at_ns);
	return DROP_NONE;
}

/* Headroom empties first: it has to be there again before the peer may go on. */
void buffer_release(struct fabric *f, uint32_t port, uint32_t c, uint32_t len, int64_t at_ns)
{
	struct ingress *in = &f->port[port].ingress[c];
	uint64_t headroom = in->headroom_bytes < len ? in->headroom_bytes : len;

	assert(in->bytes >= len);
	charge(f, port, c, (int64_t)headroom - len, -(int64_t)headroom);
	if (f->config.flow_control == FLOW_CONTROL_CREDITS)
		credits_free(f, port, c, credit_units(len), at_ns);
	else
		pfc_occupancy_changed(f, port, c, at_ns);
}

void buffer_goes_in(struct fabric *f, uint32_t port, uint32_t c, uint32_t len)
{
	struct ingress *in = &f->port[port].ingress[c];

	in->inside_bytes[f->epoch & 1] += len;
	in->inside_units[f->epoch & 1] += credit_units(len);
}

uint32_t buffer_came_out(struct fabric *f, uint32_t sw, const struct frame_metadata *m, uint32_t c, uint32_t len)
{
	uint64_t epoch = m->time_us >> EPOCH_SHIFT_US, age = (f->epoch - epoch) & (0xffffffffffull >> EPOCH_SHIFT_US);
	uint32_t port = f->sw[sw].port[m->ingress_port];
	struct ingress *in;

	if (port == UINT16_MAX || !is_lossless(f, &f->port[port], c))
		return NONE;
	in = &f->port[port].ingress[c];
	/* Written off already, or none of ours: no longer charged to anybody. */
	if (age > 1 || in->inside_bytes[epoch & 1] < len || in->inside_units[epoch & 1] < credit_units(len))
		return NONE;
	in->inside_bytes[epoch & 1] -= len;
	in->inside_units[epoch & 1] -= credit_units(len);
	return port;
}

static void write_off(struct fabric *f, uint32_t port, uint32_t c, uint32_t parity)
{
	struct ingress *in = &f->port[port].ingress[c];
	uint64_t bytes = in->inside_bytes[parity], units = in->inside_units[parity];
	uint64_t headroom = in->headroom_bytes < bytes ? in->headroom_bytes : bytes;

	if (bytes == 0 && units == 0)
		return;
	in->inside_bytes[parity] = in->inside_units[parity] = 0;
	priority_group(f, &f->port[port], c)->written_off_bytes += bytes;
	charge(f, port, c, (int64_t)headroom - (int64_t)bytes, -(int64_t)headroom);
	if (f->config.flow_control == FLOW_CONTROL_CREDITS)
		credits_free(f, port, c, units, f->now_ns);
	else
		pfc_occupancy_changed(f, port, c, f->now_ns);
}

/* A new epoch: what went into a switch two epochs ago and has not come out never will. */
void buffer_write_off(struct fabric *f)
{
	uint64_t epoch = (uint64_t)f->now_ns / 1000 >> EPOCH_SHIFT_US;
	uint32_t port, c, both = epoch - f->epoch > 1;

	if (epoch == f->epoch)
		return;
	f->epoch = epoch;
	for (port = 0; port < f->config.ports; port++) {
		if (f->port[port].config.kind != DEVICE_SWITCH)
			continue;
		for (c = 0; c < MAX_CLASSES; c++) {
			write_off(f, port, c, epoch & 1);
			if (both)
				write_off(f, port, c, ~epoch & 1);
		}
	}
}

uint32_t buffer_holder(const struct fabric *f, uint32_t port, uint32_t c)
{
	const struct port *in = &f->port[port];
	uint64_t most = 0, bytes;
	uint32_t best = NONE, number, other, i;

	if (in->config.kind != DEVICE_SWITCH)
		return NONE;
	for (number = 0; number < 256; number++) {
		other = f->sw[in->config.node].port[number];
		if (other == UINT16_MAX)
			continue;
		bytes = 0;
		for (i = f->port[other].queue[c].head; i != NONE; i = f->packet[i].next)
			bytes += f->packet[i].ingress == port ? f->packet[i].len : 0;
		i = f->port[other].serialising;
		if (i != NONE && f->packet[i].ingress == port && f->packet[i].traffic_class == c)
			bytes += f->packet[i].len;
		if (bytes > most) {
			most = bytes;
			best = other;
		}
	}
	return best;
}
