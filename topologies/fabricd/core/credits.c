/*
 * Credit-based flow control per link and virtual lane (a lossless class), as InfiniBand has it
 * (Architecture Specification 1.4, 7.9): the receiver advertises its buffer in units of 64 bytes, the sender counts
 * what it has ever sent and never passes the limit that it was told, the limit is buffer + everything
 * ever freed.  So a lost update costs nothing that the next one does not repair, and what is lost on the
 * link is freed there (InfiniBand: the sender's total in every update).
 *
 * An update takes 8 bytes of the link a lane, and its delay.  One is due when a quarter of the buffer was freed since the
 * last one.
 */
#include <assert.h>
#include <string.h>

#include "fabric_internal.h"

enum { UNIT_BYTES = 64, FCS_BYTES = 4, UPDATE_BYTES = 8 };

struct update {
	uint32_t classes;
	uint64_t limit[MAX_CLASSES];
};

uint32_t credit_units(uint32_t len)
{
	return (len + FCS_BYTES + UNIT_BYTES - 1) / UNIT_BYTES;
}

static uint64_t buffer_units(const struct port *p)
{
	return (uint64_t)p->config.credit_bytes / UNIT_BYTES;
}

/* The peer begins with the whole buffer. */
void credits_configure(struct fabric *f, uint32_t port)
{
	struct port *p = &f->port[port], *peer = &f->port[p->config.peer];
	uint32_t c;

	for (c = 0; c < MAX_CLASSES; c++)
		peer->egress[c].limit_units = priority_group(f, peer, c)->credit_limit_units = buffer_units(p);
}

int credits_suffice(const struct fabric *f, const struct port *p, uint32_t c)
{
	return p->egress[c].sent_units + credit_units(f->packet[p->queue[c].head].len) <= p->egress[c].limit_units;
}

static void record(struct fabric *f, const struct port *p, uint32_t c, int64_t at_ns, int64_t lasted_ns)
{
	uint32_t port = (uint32_t)(p - f->port);
	struct trace_record stall = {
		.t_ns = at_ns, .wait_ns = lasted_ns < 0 ? 0 : lasted_ns, .flow = NONE, .psn = lasted_ns < 0,
		.bytes = (uint32_t)f->telemetry.port[port].queue[c].depth_bytes, .port = (uint16_t)port,
		.kind = TRACE_CREDIT_STALL, .reason = (uint8_t)c,
	};

	telemetry_trace(&f->telemetry, &stall);
}

void credits_stalled(struct fabric *f, struct port *p, uint32_t c, int64_t at_ns)
{
	if (p->egress[c].stalled_since_ns != NEVER)
		return;
	p->egress[c].stalled_since_ns = at_ns;
	priority_group(f, p, c)->credit_stalls++;
	record(f, p, c, at_ns, -1);
}

void credits_spend(struct fabric *f, struct port *p, uint32_t c, uint32_t len, int64_t at_ns)
{
	struct egress *out = &p->egress[c];

	out->sent_units += credit_units(len);
	priority_group(f, p, c)->credit_sent_units = out->sent_units;
	assert(out->sent_units <= out->limit_units);
	if (out->stalled_since_ns == NEVER)
		return;
	priority_group(f, p, c)->credit_stall_ns += (uint64_t)(at_ns - out->stalled_since_ns);
	record(f, p, c, at_ns, at_ns - out->stalled_since_ns);
	out->stalled_since_ns = NEVER;
}

static void announce(struct fabric *f, uint32_t port, uint8_t classes, int64_t at_ns)
{
	struct port *p = &f->port[port];

	if (p->announce_classes == 0)
		p->announce_since_ns = at_ns;
	p->announce_classes |= classes;
	tm_wake(f, port, at_ns);
}

void credits_free(struct fabric *f, uint32_t port, uint32_t c, uint64_t units, int64_t at_ns)
{
	struct port *p = &f->port[port];
	struct ingress *in = &p->ingress[c];
	uint64_t buffer = buffer_units(p), enough = buffer / 4, rest = buffer - credit_units(f->config.frame_bytes);

	in->freed_units += units;
	assert(in->freed_units <= f->port[p->config.peer].egress[c].sent_units);
	/* What is held back must never be what the peer's next frame needs. */
	if (in->freed_units - in->announced_units >= (enough < rest ? enough : rest))
		announce(f, port, (uint8_t)(1u << c), at_ns);
}

/* After the link was down: updates may have been lost. */
void credits_repeat(struct fabric *f, uint32_t port)
{
	announce(f, port, f->port[port].config.lossless_classes, f->now_ns);
}

void credits_write(struct fabric *f, uint32_t port, uint32_t index)
{
	struct port *p = &f->port[port];
	struct update update = { .classes = p->announce_classes };
	uint32_t c;

	for (c = 0; c < MAX_CLASSES; c++) {
		if (!(update.classes >> c & 1))
			continue;
		update.limit[c] = buffer_units(p) + p->ingress[c].freed_units;
		p->ingress[c].announced_units = p->ingress[c].freed_units;
	}
	memcpy(packet_frame(f, index), &update, sizeof update);
	f->packet[index].len = UPDATE_BYTES * (uint32_t)__builtin_popcount(update.classes);
}

void credits_arrived(struct fabric *f, uint32_t port, uint32_t index, int64_t at_ns)
{
	struct port *p = &f->port[port];
	struct update update;
	uint32_t c;

	memcpy(&update, packet_frame(f, index), sizeof update);
	tm_serve(f, port, at_ns);
	for (c = 0; c < MAX_CLASSES; c++) {
		if (!(update.classes >> c & 1) || update.limit[c] <= p->egress[c].limit_units)
			continue;
		p->egress[c].limit_units = priority_group(f, p, c)->credit_limit_units = update.limit[c];
		p->egress[c].credit_ns = at_ns;
	}
	tm_wake(f, port, at_ns);
}
