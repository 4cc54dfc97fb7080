/*
 * Priority-based flow control (IEEE 802.1Qbb): real frames, sent upstream by the port whose ingress
 * is above XOFF, before everything else in its egress and at a frame boundary, and obeyed by the port at the far end
 * of the link at a frame boundary again.
 *
 * One frame speaks for all classes whose state changed since the last; it is written when it gets the wire, so
 * that it says what holds then.  A pause lasts `pause_quanta`; while the ingress stays above XON it is
 * refreshed at half of that; XON is a pause of 0.  The frame is also handed to the paused
 * device, whose interface shows it; no bridge forwards its destination, and it is in no count of frames.
 */
#include <string.h>

#include "fabric_internal.h"

static int64_t quanta_ns(const struct port *p, uint32_t quanta)
{
	return (int64_t)quanta * 512 * NANOSECONDS / p->config.rate_bps;
}

/* The peer must be told of these classes, from at_ns on. */
static void announce(struct fabric *f, uint32_t port, uint8_t classes, int64_t at_ns)
{
	struct port *p = &f->port[port];

	if (p->announce_classes == 0)
		p->announce_since_ns = at_ns;
	p->announce_classes |= classes;
	tm_wake(f, port, at_ns);
}

static void record(struct fabric *f, enum trace_kind kind, uint32_t port, uint32_t c, int64_t at_ns, int64_t lasted_ns)
{
	const struct port *p = &f->port[port];
	struct trace_record pause = {
		.t_ns = at_ns, .wait_ns = lasted_ns < 0 ? 0 : lasted_ns, .flow = NONE, .psn = lasted_ns < 0, .arg = NONE,
		.port = (uint16_t)port, .kind = (uint8_t)kind, .reason = (uint8_t)c,
	};

	if (kind == TRACE_PAUSE) {
		pause.bytes = (uint32_t)p->ingress[c].bytes;
		pause.arg = buffer_holder(f, port, c);
	} else {
		pause.bytes = (uint32_t)f->telemetry.port[port].queue[c].depth_bytes;
	}
	telemetry_trace(&f->telemetry, &pause);
}

static void begin_xoff(struct fabric *f, uint32_t port, uint32_t c, int64_t at_ns)
{
	struct port *p = &f->port[port];

	p->xoff_classes |= (uint8_t)(1u << c);
	p->ingress[c].xoff_since_ns = p->ingress[c].told_ns = at_ns;
	record(f, TRACE_PAUSE, port, c, at_ns, -1);
	announce(f, port, (uint8_t)(1u << c), at_ns);
}

static void end_xoff(struct fabric *f, uint32_t port, uint32_t c, int64_t at_ns)
{
	struct port *p = &f->port[port];

	p->xoff_classes &= (uint8_t)~(1u << c);
	priority_group(f, p, c)->tx_pause_ns += (uint64_t)(at_ns - p->ingress[c].told_ns);
	record(f, TRACE_PAUSE, port, c, at_ns, at_ns - p->ingress[c].xoff_since_ns);
	announce(f, port, (uint8_t)(1u << c), at_ns);
}

/* Bytes were charged to this ingress or released: say XOFF or XON if that is due. */
void pfc_occupancy_changed(struct fabric *f, uint32_t port, uint32_t c, int64_t at_ns)
{
	struct port *p = &f->port[port];

	if (p->xoff_classes >> c & 1) {
		if (buffer_below_xon(f, port, c))
			end_xoff(f, port, c, at_ns);
	} else if (buffer_above_xoff(f, port, c)) {
		begin_xoff(f, port, c, at_ns);
	}
}

/* A planted fault: a port that tells its peer to stop whatever its buffer holds. */
void pfc_storm(struct fabric *f, uint32_t port, uint8_t classes)
{
	struct port *p = &f->port[port];
	uint8_t changed = p->storm_classes ^ classes;

	p->storm_classes = classes;
	if (changed != 0)
		announce(f, port, changed, f->now_ns);
}

/* The frame that the wire takes now. */
void pfc_write(struct fabric *f, uint32_t port, uint32_t index, int64_t at_ns)
{
	struct port *p = &f->port[port];
	uint8_t stop = p->xoff_classes | p->storm_classes;
	struct pfc_frame pfc = { .classes = p->announce_classes };
	uint32_t c;

	for (c = 0; c < MAX_CLASSES; c++) {
		if (!(pfc.classes >> c & 1))
			continue;
		pfc.quanta[c] = stop >> c & 1 ? (uint16_t)f->config.pause_quanta : 0;
		priority_group(f, p, c)->pfc_tx_pkts++;
		if (p->xoff_classes >> c & 1 && at_ns > p->ingress[c].told_ns) {
			priority_group(f, p, c)->tx_pause_ns += (uint64_t)(at_ns - p->ingress[c].told_ns);
			p->ingress[c].told_ns = at_ns;
		}
	}
	frame_write_pfc(packet_frame(f, index), p->config.mac, &pfc);
	f->packet[index].len = PFC_FRAME_BYTES;
	p->refresh_ns = stop != 0 ? at_ns + quanta_ns(p, f->config.pause_quanta) / 2 : NEVER;
}

/* A MAC control frame that the device itself emitted: it goes over the link like ours. */
void pfc_from_device(struct fabric *f, uint32_t port, const uint8_t *frame, uint32_t len, int64_t at_ns)
{
	uint32_t index = packet_allocate(f, PACKET_MAC_CONTROL);

	if (index == NONE) {
		f->telemetry.port[port].dropped[DROP_POOL]++;
		return;
	}
	memcpy(packet_frame(f, index), frame, len);
	f->packet[index].len = len;
	f->packet[index].enqueued_ns = at_ns;
	fifo_push(f, &f->port[port].control, index);
	tm_wake(f, port, at_ns);
}

static void end_pause(struct fabric *f, uint32_t port, uint32_t c, int64_t at_ns)
{
	struct port *p = &f->port[port];
	struct egress *out = &p->egress[c];

	p->paused_classes &= (uint8_t)~(1u << c);
	priority_group(f, p, c)->rx_pause_ns += (uint64_t)(at_ns - out->told_ns);
	record(f, TRACE_PAUSED, port, c, at_ns, at_ns - out->paused_since_ns);
}

static void expire(struct fabric *f, uint32_t port, int64_t now_ns)
{
	struct port *p = &f->port[port];
	uint32_t paused;

	for (paused = p->paused_classes; paused != 0; paused &= paused - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(paused);

		if (p->egress[c].pause_until_ns <= now_ns)
			end_pause(f, port, c, p->egress[c].pause_until_ns);
	}
}

static void obey(struct fabric *f, uint32_t port, uint32_t c, uint32_t quanta, int64_t at_ns)
{
	struct port *p = &f->port[port];
	struct egress *out = &p->egress[c];
	int was_paused = p->paused_classes >> c & 1;

	if (quanta > 0) {
		if (!was_paused) {
			p->paused_classes |= (uint8_t)(1u << c);
			out->paused_since_ns = out->told_ns = at_ns;
			record(f, TRACE_PAUSED, port, c, at_ns, -1);
		}
		priority_group(f, p, c)->rx_pause_ns += (uint64_t)(at_ns - out->told_ns);
		out->told_ns = out->last_xoff_ns = at_ns;
		out->pause_until_ns = at_ns + quanta_ns(p, quanta);
	} else if (was_paused) {
		priority_group(f, p, c)->pfc_on2off_rx_pkts++;
		out->pause_until_ns = at_ns;
		end_pause(f, port, c, at_ns);
	}
}

/* A PFC frame has come over the link to `port`. */
void pfc_arrived(struct fabric *f, uint32_t port, uint32_t index, int64_t at_ns)
{
	struct port *p = &f->port[port];
	struct pfc_frame pfc;
	uint32_t c;

	if (!frame_read_pfc(packet_frame(f, index), f->packet[index].len, &pfc))
		return;
	tm_serve(f, port, at_ns);
	expire(f, port, at_ns);
	for (c = 0; c < MAX_CLASSES; c++) {
		if (!(pfc.classes >> c & 1))
			continue;
		priority_group(f, p, c)->pfc_rx_pkts++;
		if (is_lossless(f, p, c))
			obey(f, port, c, pfc.quanta[c], at_ns);
	}
	tm_wake(f, port, at_ns);
}

/* A pause that goes on is said again, unless the dynamic threshold has risen above it meanwhile. */
static void refresh(struct fabric *f, uint32_t port)
{
	struct port *p = &f->port[port];
	int64_t at_ns = p->refresh_ns;
	uint32_t c;

	p->refresh_ns = NEVER;
	for (c = 0; c < MAX_CLASSES; c++)
		if (p->xoff_classes >> c & 1)
			pfc_occupancy_changed(f, port, c, at_ns);
	if ((p->xoff_classes | p->storm_classes) != 0)
		announce(f, port, p->xoff_classes | p->storm_classes, at_ns);
}

/* Pauses that have run out, and refreshes that are due. */
void pfc_advance(struct fabric *f, uint32_t port)
{
	if (f->port[port].paused_classes != 0)
		expire(f, port, f->now_ns);
	if (f->port[port].refresh_ns <= f->now_ns)
		refresh(f, port);
}

int64_t pfc_next_ns(const struct port *p)
{
	int64_t next = p->refresh_ns;
	uint32_t paused;

	for (paused = p->paused_classes; paused != 0; paused &= paused - 1) {
		int64_t until = p->egress[__builtin_ctz(paused)].pause_until_ns;

		next = until < next ? until : next;
	}
	return next;
}

uint32_t fabric_paused_classes(const struct fabric *f, uint32_t port)
{
	const struct port *p = &f->port[port];
	uint32_t mask = 0, lossless = f->config.flow_control == FLOW_CONTROL_NONE ? 0 : p->config.lossless_classes;

	for (; lossless != 0; lossless &= lossless - 1) {
		uint32_t c = (uint32_t)__builtin_ctz(lossless);
		const struct egress *out = &p->egress[c];
		int held = out->pause_until_ns > f->now_ns || out->stalled_since_ns != NEVER ||
			   f->telemetry.port[port].queue[c].depth_bytes >= 2 * (uint64_t)f->config.frame_bytes;

		mask |= (uint32_t)held << c;
	}
	return mask;
}
