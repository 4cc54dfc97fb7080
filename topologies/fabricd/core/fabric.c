/* The fabric's memory and configuration, and a frame's way in and out. */
#include "fabric.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "fabric_internal.h"

static size_t align64(size_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}

static struct telemetry_shape telemetry_shape(const struct fabric_config *c)
{
	return (struct telemetry_shape){
		.ports = c->ports, .switches = c->switches, .nics = c->nics, .classes = c->classes, .flows = c->flows,
		.series_rows = c->series_rows, .trace_records = c->trace_records,
	};
}

/* Walks through the one block of memory: with base NULL it only measures. */
static size_t lay_out(struct fabric *f, uint8_t *base, const struct fabric_config *c)
{
	size_t at = align64(sizeof *f);
	struct fabric scratch;

	if (base == NULL)
		f = &scratch;
#define PLACE(member, count)                                                    \
	do {                                                                    \
		f->member = base == NULL ? NULL : (void *)(base + at);          \
		at += align64(sizeof *f->member * (size_t)(count));             \
	} while (0)
	PLACE(port, c->ports);
	PLACE(sw, c->switches);
	PLACE(active, c->ports / 64 + 1);
	PLACE(flow_digest, c->flows);
	PLACE(flow_index, 2 * (size_t)c->flows);
	PLACE(at_switch, (size_t)c->flows * c->switches);
	PLACE(out, c->pool_frames);
	PLACE(packet, c->pool_frames);
	PLACE(frames, (size_t)c->pool_frames * align64(c->frame_bytes));
#undef PLACE
	return at;
}

size_t fabric_bytes(const struct fabric_config *config)
{
	return lay_out(NULL, NULL, config);
}

size_t fabric_telemetry_bytes(const struct fabric_config *config)
{
	struct telemetry_shape shape = telemetry_shape(config);

	return telemetry_bytes(&shape);
}

struct fabric *fabric_init(void *memory, void *telemetry, const struct fabric_config *config)
{
	struct fabric *f = memory;
	struct telemetry_shape shape = telemetry_shape(config);
	uint32_t i, c;

	assert(config->classes >= 1 && config->classes <= MAX_CLASSES);
	assert(config->flows > 0 && (config->flows & (config->flows - 1)) == 0);
	lay_out(f, memory, config);
	f->config = *config;
	f->frame_stride = (uint32_t)align64(config->frame_bytes);
	telemetry_init(&f->telemetry, telemetry, &shape);
	memset(f->flow_index, 0xff, sizeof *f->flow_index * 2 * config->flows);
	/* Packets never used stay untouched, so that only those ever needed take real memory. */
	f->free_packets = NONE;
	for (i = 0; i < config->ports; i++) {
		f->telemetry.port[i].up = 1;
		f->port[i].serialising = NONE;
		f->port[i].line.head = NONE;
		for (c = 0; c < MAX_CLASSES; c++)
			f->port[i].queue[c].head = NONE;
	}
	return f;
}

int fabric_set_port(struct fabric *f, uint32_t port, const struct port_config *config)
{
	uint32_t nodes = config->kind == DEVICE_SWITCH ? f->config.switches : f->config.nics;

	if (port >= f->config.ports || config->peer >= f->config.ports || config->kind > DEVICE_SWITCH ||
	    config->node >= nodes || config->number > 255 || config->rate_bps <= 0 || config->delay_ns < 0 ||
	    config->buffer_bytes < (int64_t)f->config.frame_bytes)
		return -EINVAL;
	f->port[port].config = *config;
	return 0;
}

int fabric_set_switch(struct fabric *f, uint32_t sw, const struct switch_config *config)
{
	if (sw >= f->config.switches || config->flowlet_gap_ns < 0 || config->shared_buffer_bytes < 0 || config->alpha <= 0)
		return -EINVAL;
	f->sw[sw].config = *config;
	return 0;
}

void fabric_set_gateway_mac(struct fabric *f, const uint8_t mac[6])
{
	memcpy(f->gateway_mac, mac, 6);
}

struct telemetry *fabric_telemetry(struct fabric *f)
{
	return &f->telemetry;
}

uint32_t packet_allocate(struct fabric *f)
{
	struct telemetry_global *g = f->telemetry.global;
	uint32_t packet = f->free_packets;

	if (packet != NONE)
		f->free_packets = f->packet[packet].next;
	else if (g->pool_peak < f->config.pool_frames)
		packet = (uint32_t)g->pool_peak++;
	else
		return NONE;
	g->pool_used++;
	return packet;
}

void packet_free(struct fabric *f, uint32_t packet)
{
	f->packet[packet].next = f->free_packets;
	f->free_packets = packet;
	f->telemetry.global->pool_used--;
}

static void drop(struct fabric *f, uint32_t port, enum drop_reason reason, uint32_t flow, uint32_t traffic_class,
		 uint32_t psn, uint32_t len)
{
	struct telemetry_port *t = &f->telemetry.port[port];
	struct trace_record record = {
		.t_ns = f->now_ns, .flow = flow, .psn = psn, .bytes = len,
		.arg = (uint32_t)t->queue[traffic_class].depth_bytes, .port = (uint16_t)port,
		.kind = TRACE_DROP, .reason = (uint8_t)reason,
	};

	t->dropped[reason]++;
	t->queue[traffic_class].dropped_frames++;
	t->queue[traffic_class].dropped_bytes += len;
	if (flow != NONE)
		f->telemetry.flow[flow].dropped_frames++;
	telemetry_trace(&f->telemetry, &record);
}

/* A frame that comes out of a switch carries when it went in: 40 bits of microseconds, so the difference wraps. */
static void left_switch(struct fabric *f, uint32_t sw, const struct frame_metadata *m, int64_t arrival_ns)
{
	uint64_t inside_us = ((uint64_t)arrival_ns / 1000 - m->time_us) & 0xffffffffffull;

	f->telemetry.sw[sw].out_frames++;
	histogram_add(&f->telemetry.sw[sw].inside_us, inside_us);
}

void fabric_rx(struct fabric *f, uint32_t port, const uint8_t *frame, uint32_t len, int64_t arrival_ns)
{
	struct port *p = &f->port[port];
	struct telemetry_port *t = &f->telemetry.port[port];
	struct frame_info info;
	struct frame_metadata metadata;
	enum drop_reason reason;
	uint32_t flow, traffic_class, index;
	uint64_t digest;
	struct packet *packet;

	assert(port < f->config.ports);
	if (arrival_ns > f->now_ns)
		f->now_ns = arrival_ns;
	reason = frame_parse(frame, len, f->config.frame_bytes, &info);
	if (reason == DROP_NONE && p->config.kind == DEVICE_SWITCH && !frame_read_metadata(frame, &metadata))
		reason = DROP_FOREIGN_MAC;
	if (reason != DROP_NONE) {
		t->dropped[reason]++;
		return;
	}
	tm_advance_port(f, port);
	digest = flow_digest(&info.key);
	flow = flow_lookup(f, &info.key, digest);
	traffic_class = f->dscp_class[info.dscp];
	t->rx_frames++;
	t->rx_bytes += len;
	if (p->config.kind == DEVICE_SWITCH) {
		left_switch(f, p->config.node, &metadata, arrival_ns);
		flow_leaves_switch(f, p->config.node, flow, info.psn, port);
	} else if (flow != NONE) {
		f->telemetry.flow[flow].sent_frames++;
		f->telemetry.flow[flow].sent_bytes += len;
	}
	reason = tm_admit(f, port, traffic_class, len);
	index = reason == DROP_NONE ? packet_allocate(f) : NONE;
	if (index == NONE) {
		drop(f, port, reason == DROP_NONE ? DROP_POOL : reason, flow, traffic_class, info.psn, len);
		return;
	}
	packet = &f->packet[index];
	packet->flow = flow;
	packet->len = len;
	packet->psn = info.psn;
	packet->traffic_class = traffic_class;
	packet->digest = digest;
	packet->enqueued_ns = arrival_ns;
	memcpy(packet_frame(f, index), frame, len);
	tm_enqueue(f, port, index);
}

/* The frame has reached the far end: dress it for the device there and put it out. */
void fabric_deliver(struct fabric *f, uint32_t from_port, uint32_t index)
{
	const struct port *from = &f->port[from_port], *to = &f->port[from->config.peer];
	struct telemetry *t = &f->telemetry;
	struct packet *packet = &f->packet[index];
	uint8_t *frame = packet_frame(f, index);

	if (!t->port[from_port].up) {
		drop(f, from_port, DROP_LINK_DOWN, packet->flow, packet->traffic_class, packet->psn, packet->len);
		packet_free(f, index);
		return;
	}
	t->port[from_port].delivered_frames++;
	histogram_add(&t->global->lateness_us, (uint64_t)(f->now_ns - packet->due_ns) / 1000);
	if (to->config.kind == DEVICE_SWITCH) {
		struct frame_metadata metadata = {
			.ingress_port = (uint8_t)to->config.number, .time_us = (uint64_t)f->now_ns / 1000,
		};

		flow_enters_switch(f, to->config.node, packet->flow, packet->digest, packet->len, &metadata);
		frame_write_metadata(frame, &metadata);
		t->sw[to->config.node].in_frames++;
	} else {
		frame_write_macs(frame, to->config.mac, f->gateway_mac);
		if (packet->flow != NONE) {
			t->flow[packet->flow].delivered_frames++;
			t->flow[packet->flow].delivered_bytes += packet->len;
		}
	}
	f->out[f->outs++] = (struct fabric_out){
		.port = from->config.peer, .len = packet->len, .frame = frame, .due_ns = packet->due_ns, .packet = index,
	};
}

static void record_series(struct fabric *f)
{
	struct telemetry *t = &f->telemetry;
	uint8_t *row = t->series + t->global->series_head % f->config.series_rows * t->series_row_bytes;
	uint32_t *depth = (uint32_t *)(void *)(row + sizeof(int64_t));
	uint32_t port, c;

	memcpy(row, &f->now_ns, sizeof f->now_ns);
	for (port = 0; port < f->config.ports; port++)
		for (c = 0; c < f->config.classes; c++)
			*depth++ = (uint32_t)t->port[port].queue[c].depth_bytes;
	__atomic_store_n(&t->global->series_head, t->global->series_head + 1, __ATOMIC_RELEASE);
}

void fabric_advance(struct fabric *f, int64_t now_ns)
{
	uint32_t word;

	if (now_ns > f->now_ns)
		f->now_ns = now_ns;
	for (word = 0; word <= f->config.ports / 64; word++) {
		uint64_t bits = f->active[word];

		while (bits != 0) {
			tm_advance_port(f, word * 64 + (uint32_t)__builtin_ctzll(bits));
			bits &= bits - 1;
		}
	}
	if (f->series_interval_ns > 0 && f->now_ns >= f->series_next_ns) {
		record_series(f);
		/* A late tick skips rows rather than write the same moment twice. */
		f->series_next_ns += (1 + (f->now_ns - f->series_next_ns) / f->series_interval_ns) * f->series_interval_ns;
	}
	f->telemetry.global->now_ns = f->now_ns;
	f->telemetry.global->ticks++;
}

const struct fabric_out *fabric_out(struct fabric *f, uint32_t *count)
{
	*count = f->outs;
	return f->out;
}

void fabric_out_done(struct fabric *f)
{
	uint32_t i;

	for (i = 0; i < f->outs; i++)
		packet_free(f, f->out[i].packet);
	f->outs = 0;
}

int64_t fabric_next_ns(const struct fabric *f)
{
	int64_t next = INT64_MAX, at;
	uint32_t port;

	if (f->outs > 0)
		return f->now_ns;
	for (port = 0; port < f->config.ports; port++) {
		at = tm_next_ns(f, port);
		if (at < next)
			next = at;
	}
	return next;
}

void fabric_control(struct fabric *f, struct control_request *request)
{
	uint32_t index = request->index;

	request->status = 0;
	if (request->op == FABRIC_SET_SWITCH && index < f->config.switches) {
		if (request->arg[0] >= 0)
			f->sw[index].config.hash_seed = (uint64_t)request->arg[0];
		if (request->arg[1] >= 0)
			f->sw[index].config.flowlet_gap_ns = request->arg[1];
	} else if (request->op == FABRIC_SET_PORT_UP && index < f->config.ports) {
		f->telemetry.port[index].up = request->arg[0] != 0;
	} else if (request->op == FABRIC_SERIES_INTERVAL && request->arg[0] >= 0) {
		f->series_interval_ns = request->arg[0];
		f->series_next_ns = f->now_ns;
	} else {
		request->status = -EINVAL;
	}
}
