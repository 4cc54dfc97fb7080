/*
 * A host whose NIC gets rid of what it receives more slowly than the link brings it (PCIe, a slow
 * root complex): a receive buffer that drains at a rate of its own, with XOFF and headroom as a switch's ingress has.
 * What is not lossless is dropped when the buffer is full.
 */
#include "fabric_internal.h"

static int64_t drain_ns(int64_t bytes, int64_t drain_bps)
{
	return drain_bps > 0 ? bytes * 8 * NANOSECONDS / drain_bps : 0;
}

int receiver_in_use(const struct port *p)
{
	return p->config.drain_bps > 0 || p->receive.head != NONE;
}

static enum drop_reason admit(struct fabric *f, uint32_t port, struct packet *packet)
{
	struct port *p = &f->port[port];
	enum drop_reason reason;

	if (is_lossless(f, p, packet->traffic_class)) {
		reason = buffer_charge(f, port, packet->traffic_class, packet->len, packet->due_ns);
		if (reason == DROP_NONE)
			packet->ingress = port;
		return reason;
	}
	return p->receive_bytes + packet->len > (uint64_t)(p->config.xoff_bytes + p->config.headroom_bytes) ? DROP_TAIL : DROP_NONE;
}

void receiver_take(struct fabric *f, uint32_t port, uint32_t index)
{
	struct port *p = &f->port[port];
	struct packet *packet = &f->packet[index];
	enum drop_reason reason = admit(f, port, packet);

	if (reason != DROP_NONE) {
		fabric_drop(f, port, reason, packet);
		packet_free(f, index);
		return;
	}
	p->receive_bytes += packet->len;
	if (packet->due_ns < p->drain_free_ns)
		packet->due_ns = p->drain_free_ns;
	packet->due_ns += drain_ns(packet->len, p->config.drain_bps);
	p->drain_free_ns = packet->due_ns;
	fifo_push(f, &p->receive, index);
	f->active[port / 64] |= 1ull << port % 64;
}

void receiver_drain(struct fabric *f, uint32_t port)
{
	struct port *p = &f->port[port];

	while (p->receive.head != NONE && f->packet[p->receive.head].due_ns <= f->now_ns) {
		uint32_t index = fifo_pop(f, &p->receive);
		struct packet *packet = &f->packet[index];

		p->receive_bytes -= packet->len;
		if (packet->ingress != NONE)
			buffer_release(f, port, packet->traffic_class, packet->len, packet->due_ns);
		packet->ingress = NONE;
		fabric_hand_over(f, port, index);
	}
}

/* What stands in the buffer leaves it at the new rate from now on, the first frame with the part that is left of it. */
void receiver_set_drain(struct fabric *f, uint32_t port, int64_t drain_bps)
{
	struct port *p = &f->port[port];
	int64_t before_bps = p->config.drain_bps, at_ns = f->now_ns;
	uint32_t index;

	receiver_drain(f, port);
	p->config.drain_bps = drain_bps;
	for (index = p->receive.head; index != NONE; index = f->packet[index].next) {
		struct packet *packet = &f->packet[index];
		int64_t left = packet->len;

		if (index == p->receive.head && before_bps > 0 && packet->due_ns - drain_ns(left, before_bps) < f->now_ns)
			left = (packet->due_ns - f->now_ns) * before_bps / (8 * NANOSECONDS);
		at_ns += drain_ns(left, drain_bps);
		packet->due_ns = at_ns;
	}
	p->drain_free_ns = at_ns;
	receiver_drain(f, port);
}
