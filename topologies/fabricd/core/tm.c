/* The traffic manager: admission to a queue, serialising at the port's rate, flying along the link. */
#include <assert.h>

#include "fabric_internal.h"

void fifo_push(struct fabric *f, struct fifo *q, uint32_t packet)
{
	f->packet[packet].next = NONE;
	if (q->head == NONE)
		q->head = packet;
	else
		f->packet[q->tail].next = packet;
	q->tail = packet;
}

uint32_t fifo_pop(struct fabric *f, struct fifo *q)
{
	uint32_t packet = q->head;

	assert(packet != NONE);
	q->head = f->packet[packet].next;
	return packet;
}

/* Something waits for the wire, or will. */
static int can_start(const struct port *p)
{
	return (p->waiting_classes | p->announce_classes) != 0 || p->control.head != NONE;
}

static int idle(const struct port *p)
{
	return p->serialising == NONE && p->line.head == NONE && !can_start(p) && p->receive.head == NONE &&
	       (p->xoff_classes | p->storm_classes | p->paused_classes | p->watchdog_classes) == 0;
}

enum drop_reason tm_admit(const struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len, uint32_t ingress)
{
	if (!f->telemetry.port[port].up)
		return DROP_LINK_DOWN;
	if (watchdog_drops(f, &f->port[port], traffic_class))
		return DROP_WATCHDOG;
	/* What is charged to an ingress port has its room already: lossless classes never drop at egress. */
	return ingress != NONE ? DROP_NONE : buffer_admit_egress(f, port, traffic_class, len);
}

static void account(struct fabric *f, uint32_t port, const struct packet *packet, int64_t sign)
{
	struct port *p = &f->port[port];
	struct telemetry_queue *q = &f->telemetry.port[port].queue[packet->traffic_class];
	uint64_t delta = (uint64_t)(sign * (int64_t)packet->len), lossy = packet->ingress == NONE ? delta : 0;

	p->lossy_bytes += lossy;
	q->depth_bytes += delta;
	q->depth_frames += (uint64_t)sign;
	if (q->depth_bytes > q->peak_bytes)
		q->peak_bytes = q->depth_bytes;
	if (p->config.kind == DEVICE_SWITCH) {
		struct telemetry_switch *t = &f->telemetry.sw[p->config.node];

		f->sw[p->config.node].lossy_bytes += lossy;
		t->buffer_used_bytes += delta;
		if (t->buffer_used_bytes > t->buffer_peak_bytes)
			t->buffer_peak_bytes = t->buffer_used_bytes;
	}
}

static int64_t later(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* When the first frame of a class may begin at the earliest: it is there, the wire is free, nobody holds it back. */
static int64_t class_ready_ns(struct fabric *f, struct port *p, uint32_t c)
{
	int64_t at = later(f->packet[p->queue[c].head].enqueued_ns, p->wire_free_ns);

	if (!is_lossless(f, p, c))
		return at;
	if (f->config.flow_control == FLOW_CONTROL_PFC)
		return later(at, p->watchdog_classes >> c & 1 ? p->egress[c].storm_ns : p->egress[c].pause_until_ns);
	if (!credits_suffice(f, p, c)) {
		credits_stalled(f, p, c, at);
		return NEVER;
	}
	return p->egress[c].stalled_since_ns == NEVER ? at : later(at, p->egress[c].credit_ns);
}

/* The time at which the wire is taken next, and by which classes it can be. Control frames go before all others. */
static int64_t next_start(struct fabric *f, struct port *p, uint32_t *eligible, int *control)
{
	int64_t ready[MAX_CLASSES], begin = NEVER, control_ready = NEVER;
	uint32_t waiting, c;

	if (p->announce_classes != 0)
		control_ready = later(p->announce_since_ns, p->wire_free_ns);
	if (p->control.head != NONE && later(f->packet[p->control.head].enqueued_ns, p->wire_free_ns) < control_ready)
		control_ready = later(f->packet[p->control.head].enqueued_ns, p->wire_free_ns);
	begin = control_ready;
	for (waiting = p->waiting_classes; waiting != 0; waiting &= waiting - 1) {
		c = (uint32_t)__builtin_ctz(waiting);
		ready[c] = class_ready_ns(f, p, c);
		if (ready[c] < begin)
			begin = ready[c];
	}
	*eligible = 0;
	for (waiting = p->waiting_classes; waiting != 0; waiting &= waiting - 1) {
		c = (uint32_t)__builtin_ctz(waiting);
		*eligible |= (uint32_t)(ready[c] <= begin) << c;
	}
	*control = control_ready <= begin;
	return begin;
}

static uint32_t take_control(struct fabric *f, struct port *p, int64_t begin)
{
	uint32_t port = (uint32_t)(p - f->port), index;

	if (p->control.head != NONE && f->packet[p->control.head].enqueued_ns <= begin)
		return fifo_pop(f, &p->control);
	index = packet_allocate(f, f->config.flow_control == FLOW_CONTROL_PFC ? PACKET_MAC_CONTROL : PACKET_CREDITS);
	if (index == NONE) {
		/* The pool is spent, which makes the run invalid anyway: say it again when there may be room. */
		f->telemetry.port[port].dropped[DROP_POOL]++;
		p->announce_since_ns = begin + wire_ns(p, f->config.frame_bytes);
		return NONE;
	}
	if (f->config.flow_control == FLOW_CONTROL_PFC)
		pfc_write(f, port, index, begin);
	else
		credits_write(f, port, index);
	p->announce_classes = 0;
	return index;
}

static uint32_t take_data(struct fabric *f, struct port *p, uint32_t eligible, int64_t begin)
{
	uint32_t c = scheduler_pick(f, p, eligible), index = fifo_pop(f, &p->queue[c]);
	struct packet *packet = &f->packet[index];

	if (p->queue[c].head == NONE)
		p->waiting_classes &= (uint8_t)~(1u << c);
	packet->wait_ns = begin - packet->enqueued_ns;
	if (f->config.flow_control == FLOW_CONTROL_CREDITS && is_lossless(f, p, c))
		credits_spend(f, p, c, packet->len, begin);
	return index;
}

/* Puts the next frame on the wire if one can begin by until_ns. */
static int start(struct fabric *f, struct port *p, int64_t until_ns)
{
	struct telemetry_port *t = &f->telemetry.port[p - f->port];
	uint32_t eligible, index;
	int control;
	struct packet *packet;

	if (!can_start(p)) {
		p->next_start_ns = NEVER;
		return 0;
	}
	p->next_start_ns = next_start(f, p, &eligible, &control);
	if (p->next_start_ns > until_ns || p->next_start_ns == NEVER)
		return 0;
	index = control ? take_control(f, p, p->next_start_ns) : take_data(f, p, eligible, p->next_start_ns);
	if (index == NONE)
		return 1;
	packet = &f->packet[index];
	/* Credits are of the link's own making: no preamble, no gap. */
	packet->due_ns = p->next_start_ns + (packet->kind == PACKET_CREDITS ?
					     (int64_t)packet->len * 8 * NANOSECONDS / p->config.rate_bps : wire_ns(p, packet->len));
	if (control) {
		t->control_frames++;
		t->control_busy_ns += (uint64_t)(packet->due_ns - p->next_start_ns);
	} else {
		t->busy_ns += (uint64_t)(packet->due_ns - p->next_start_ns);
	}
	p->wire_free_ns = packet->due_ns;
	p->serialising = index;
	return 1;
}

static void sent(struct fabric *f, uint32_t port, struct packet *packet, int64_t at_ns)
{
	struct telemetry_port *t = &f->telemetry.port[port];
	struct trace_record hop = {
		.t_ns = at_ns, .wait_ns = packet->wait_ns, .flow = packet->flow, .psn = packet->psn,
		.bytes = packet->len, .arg = packet->depth_seen, .port = (uint16_t)port, .kind = TRACE_HOP,
		.reason = (uint8_t)packet->traffic_class,
	};
	uint32_t ingress = packet->ingress;

	account(f, port, packet, -1);
	t->tx_frames++;
	t->tx_bytes += packet->len;
	t->queue[packet->traffic_class].sent_frames++;
	t->queue[packet->traffic_class].sent_bytes += packet->len;
	telemetry_trace(&f->telemetry, &hop);
	packet->ingress = NONE;
	if (ingress != NONE)
		buffer_release(f, ingress, packet->traffic_class, packet->len, at_ns);
}

/* The wire is free and the frame on its way before anything that this leads to can come back to the port. */
static void finish(struct fabric *f, struct port *p)
{
	struct packet *packet = &f->packet[p->serialising];
	int64_t at_ns = packet->due_ns;

	packet->due_ns = at_ns + p->config.delay_ns;
	fifo_push(f, &p->line, p->serialising);
	p->serialising = NONE;
	if (packet->kind == PACKET_DATA)
		sent(f, (uint32_t)(p - f->port), packet, at_ns);
}

void tm_serve(struct fabric *f, uint32_t port, int64_t until_ns)
{
	struct port *p = &f->port[port];

	for (;;) {
		if (p->serialising == NONE) {
			if (!start(f, p, until_ns))
				return;
		} else if (f->packet[p->serialising].due_ns <= until_ns) {
			finish(f, p);
		} else {
			return;
		}
	}
}

void tm_wake(struct fabric *f, uint32_t port, int64_t at_ns)
{
	f->active[port / 64] |= 1ull << port % 64;
	tm_serve(f, port, at_ns);
}

void tm_enqueue(struct fabric *f, uint32_t port, uint32_t index)
{
	struct port *p = &f->port[port];
	struct packet *packet = &f->packet[index];
	struct telemetry_queue *q = &f->telemetry.port[port].queue[packet->traffic_class];

	packet->depth_seen = (uint32_t)q->depth_bytes;
	q->enqueued_frames++;
	q->enqueued_bytes += packet->len;
	account(f, port, packet, +1);
	fifo_push(f, &p->queue[packet->traffic_class], index);
	p->waiting_classes |= (uint8_t)(1u << packet->traffic_class);
	tm_wake(f, port, packet->enqueued_ns);
}

void tm_flush(struct fabric *f, uint32_t port, uint32_t c, enum drop_reason reason, int64_t at_ns)
{
	struct port *p = &f->port[port];
	struct fifo *q = &p->queue[c];

	/* First of all: releasing a frame may bring us back here to send the next one. */
	p->waiting_classes &= (uint8_t)~(1u << c);
	while (q->head != NONE) {
		uint32_t index = fifo_pop(f, q), ingress = f->packet[index].ingress;

		account(f, port, &f->packet[index], -1);
		fabric_drop(f, port, reason, &f->packet[index]);
		if (ingress != NONE)
			buffer_release(f, ingress, c, f->packet[index].len, at_ns);
		packet_free(f, index);
	}
}

/* The frames that have reached the far end by now. */
void tm_land(struct fabric *f, uint32_t port)
{
	struct port *p = &f->port[port];

	while (p->line.head != NONE && f->packet[p->line.head].due_ns <= f->now_ns)
		fabric_deliver(f, port, fifo_pop(f, &p->line));
}

/* Everything that happened at this port up to now, in order. */
void tm_advance_port(struct fabric *f, uint32_t port)
{
	struct port *p = &f->port[port];

	if (f->config.flow_control == FLOW_CONTROL_PFC)
		pfc_advance(f, port);
	/* Most ticks find nothing to do here. */
	if (p->serialising == NONE ? can_start(p) : f->packet[p->serialising].due_ns <= f->now_ns)
		tm_serve(f, port, f->now_ns);
	if (p->line.head != NONE)
		tm_land(f, port);
	if (p->receive.head != NONE)
		receiver_drain(f, port);
	if (idle(p))
		f->active[port / 64] &= ~(1ull << port % 64);
}

static int64_t sooner(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t tm_next_ns(const struct fabric *f, uint32_t port)
{
	const struct port *p = &f->port[port];
	int64_t next = p->serialising != NONE ? f->packet[p->serialising].due_ns : p->next_start_ns;

	if (p->line.head != NONE)
		next = sooner(next, f->packet[p->line.head].due_ns);
	if (p->receive.head != NONE)
		next = sooner(next, f->packet[p->receive.head].due_ns);
	return f->config.flow_control == FLOW_CONTROL_PFC ? sooner(next, pfc_next_ns(p)) : next;
}
