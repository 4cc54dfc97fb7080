/* The traffic manager: admission to a queue, serialising at the port's rate, flying along the link. */
#include <assert.h>

#include "fabric_internal.h"

static void fifo_push(struct fabric *f, struct fifo *q, uint32_t packet)
{
	f->packet[packet].next = NONE;
	if (q->head == NONE)
		q->head = packet;
	else
		f->packet[q->tail].next = packet;
	q->tail = packet;
}

static uint32_t fifo_pop(struct fabric *f, struct fifo *q)
{
	uint32_t packet = q->head;

	assert(packet != NONE);
	q->head = f->packet[packet].next;
	return packet;
}

static int idle(const struct port *p)
{
	return p->waiting_frames == 0 && p->serialising == NONE && p->line.head == NONE;
}

/*
 * The port's own limit first, then the switch's shared buffer with the dynamic threshold of
 * Choudhury and Hahne (IEEE/ACM ToN 1998): a queue may hold alpha times what is still free.
 */
enum drop_reason tm_admit(const struct fabric *f, uint32_t port, uint32_t traffic_class, uint32_t len)
{
	const struct port *p = &f->port[port];
	const struct switch_state *sw;
	uint64_t shared, depth;

	if (!f->telemetry.port[port].up)
		return DROP_LINK_DOWN;
	if (p->buffered_bytes + len > (uint64_t)p->config.buffer_bytes)
		return DROP_TAIL;
	if (p->config.kind != DEVICE_SWITCH)
		return DROP_NONE;
	sw = &f->sw[p->config.node];
	shared = (uint64_t)sw->config.shared_buffer_bytes;
	if (shared == 0)
		return DROP_NONE;
	depth = f->telemetry.port[port].queue[traffic_class].depth_bytes;
	if (sw->buffered_bytes + len > shared ||
	    (double)(depth + len) > sw->config.alpha * (double)(shared - sw->buffered_bytes))
		return DROP_SHARED;
	return DROP_NONE;
}

static void account(struct fabric *f, uint32_t port, const struct packet *packet, int64_t sign)
{
	struct port *p = &f->port[port];
	struct telemetry_queue *q = &f->telemetry.port[port].queue[packet->traffic_class];
	uint64_t delta = (uint64_t)(sign * (int64_t)packet->len);

	p->buffered_bytes += delta;
	q->depth_bytes += delta;
	q->depth_frames += (uint64_t)sign;
	if (q->depth_bytes > q->peak_bytes)
		q->peak_bytes = q->depth_bytes;
	if (p->config.kind == DEVICE_SWITCH) {
		struct switch_state *sw = &f->sw[p->config.node];
		struct telemetry_switch *t = &f->telemetry.sw[p->config.node];

		sw->buffered_bytes += delta;
		t->buffer_used_bytes = sw->buffered_bytes;
		if (t->buffer_used_bytes > t->buffer_peak_bytes)
			t->buffer_peak_bytes = t->buffer_used_bytes;
	}
}

/* Strict priority: the highest class that waits. */
static uint32_t next_class(const struct fabric *f, const struct port *p)
{
	uint32_t c = f->config.classes;

	while (c-- > 0)
		if (p->queue[c].head != NONE)
			return c;
	return NONE;
}

static void start(struct fabric *f, struct port *p)
{
	uint32_t index = fifo_pop(f, &p->queue[next_class(f, p)]);
	struct packet *packet = &f->packet[index];
	int64_t begin = packet->enqueued_ns > p->wire_free_ns ? packet->enqueued_ns : p->wire_free_ns;
	int64_t bits = ((int64_t)packet->len + ETHERNET_OVERHEAD_BYTES) * 8;

	packet->wait_ns = begin - packet->enqueued_ns;
	packet->due_ns = begin + bits * 1000000000 / p->config.rate_bps;
	p->wire_free_ns = packet->due_ns;
	p->serialising = index;
	p->waiting_frames--;
	f->telemetry.port[p - f->port].busy_ns += (uint64_t)(packet->due_ns - begin);
}

static void finish(struct fabric *f, struct port *p)
{
	uint32_t port = (uint32_t)(p - f->port), index = p->serialising;
	struct packet *packet = &f->packet[index];
	struct telemetry_port *t = &f->telemetry.port[port];
	struct trace_record hop = {
		.t_ns = packet->due_ns, .wait_ns = packet->wait_ns, .flow = packet->flow, .psn = packet->psn,
		.bytes = packet->len, .arg = packet->depth_seen, .port = (uint16_t)port, .kind = TRACE_HOP,
	};

	account(f, port, packet, -1);
	t->tx_frames++;
	t->tx_bytes += packet->len;
	t->queue[packet->traffic_class].sent_frames++;
	t->queue[packet->traffic_class].sent_bytes += packet->len;
	telemetry_trace(&f->telemetry, &hop);
	packet->due_ns += p->config.delay_ns;
	fifo_push(f, &p->line, index);
	p->serialising = NONE;
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
	p->waiting_frames++;
	if (p->serialising == NONE)
		start(f, p);
	f->active[port / 64] |= 1ull << port % 64;
}

/* Everything that happened at this port up to now, in order. */
void tm_advance_port(struct fabric *f, uint32_t port)
{
	struct port *p = &f->port[port];

	while (p->serialising != NONE && f->packet[p->serialising].due_ns <= f->now_ns) {
		finish(f, p);
		if (p->waiting_frames > 0)
			start(f, p);
	}
	while (p->line.head != NONE && f->packet[p->line.head].due_ns <= f->now_ns)
		fabric_deliver(f, port, fifo_pop(f, &p->line));
	if (idle(p))
		f->active[port / 64] &= ~(1ull << port % 64);
}

int64_t tm_next_ns(const struct fabric *f, uint32_t port)
{
	const struct port *p = &f->port[port];
	int64_t next = INT64_MAX;

	if (p->serialising != NONE)
		next = f->packet[p->serialising].due_ns;
	if (p->line.head != NONE && f->packet[p->line.head].due_ns < next)
		next = f->packet[p->line.head].due_ns;
	return next;
}
