/* The fabric's memory and configuration, a frame's way in, and the time. */
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
		.ports = c->ports, .switches = c->switches, .nics = c->nics, .classes = MAX_CLASSES,
		.series_classes = c->series_classes, .flows = c->flows,
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

static void init_port(struct fabric *f, uint32_t port)
{
	struct port *p = &f->port[port];
	uint32_t c;

	f->telemetry.port[port].up = 1;
	p->serialising = p->control.head = p->line.head = p->receive.head = NONE;
	p->next_start_ns = p->refresh_ns = NEVER;
	for (c = 0; c < MAX_CLASSES; c++) {
		p->queue[c].head = NONE;
		p->egress[c].stalled_since_ns = NEVER;
	}
}

struct fabric *fabric_init(void *memory, void *telemetry, const struct fabric_config *config)
{
	struct fabric *f = memory;
	struct telemetry_shape shape = telemetry_shape(config);
	uint32_t i;

	assert(config->flows > 0 && (config->flows & (config->flows - 1)) == 0);
	assert(config->frame_bytes >= 2 * PFC_FRAME_BYTES && config->ports < UINT16_MAX);
	lay_out(f, memory, config);
	f->config = *config;
	f->frame_stride = (uint32_t)align64(config->frame_bytes);
	telemetry_init(&f->telemetry, telemetry, &shape);
	memset(f->flow_index, 0xff, sizeof *f->flow_index * 2 * config->flows);
	/* Packets never used stay untouched, so that only those ever needed take real memory. */
	f->free_packets = NONE;
	f->watchdog_next_ns = config->watchdog_poll_ns;
	for (i = 0; i < config->switches; i++)
		memset(f->sw[i].port, 0xff, sizeof f->sw[i].port);
	for (i = 0; i < config->ports; i++)
		init_port(f, i);
	return f;
}

static int port_config_is_valid(const struct fabric *f, const struct port_config *c)
{
	uint32_t i, nodes = c->kind == DEVICE_SWITCH ? f->config.switches : f->config.nics;

	for (i = 0; i < MAX_CLASSES; i++)
		if (!(c->strict_classes >> i & 1) && (c->ets_share[i] < 1 || c->ets_share[i] > 100))
			return 0;
	/* An update may hold back a quarter of the buffer, and a frame must still have room. */
	if (f->config.flow_control == FLOW_CONTROL_CREDITS && c->lossless_classes != 0 &&
	    c->credit_bytes / 64 < 2 * credit_units(f->config.frame_bytes))
		return 0;
	return c->peer < f->config.ports && c->kind <= DEVICE_SWITCH && c->node < nodes && c->number <= 255 &&
	       c->rate_bps > 0 && c->delay_ns >= 0 && c->buffer_bytes >= (int64_t)f->config.frame_bytes && c->xoff_bytes >= 0 &&
	       c->xon_offset_bytes >= 0 && c->headroom_bytes >= 0 && c->drain_bps >= 0;
}

int fabric_set_port(struct fabric *f, uint32_t port, const struct port_config *config)
{
	if (port >= f->config.ports || !port_config_is_valid(f, config))
		return -EINVAL;
	f->port[port].config = *config;
	f->port[port].random = mix64(port + 1) | 1;
	if (config->kind == DEVICE_SWITCH)
		f->sw[config->node].port[config->number] = (uint16_t)port;
	scheduler_configure(f, &f->port[port]);
	credits_configure(f, port);
	return 0;
}

int fabric_set_switch(struct fabric *f, uint32_t sw, const struct switch_config *config)
{
	uint32_t i;

	if (sw >= f->config.switches || config->flowlet_gap_ns < 0 || config->lossy_pool_bytes < 0 || config->alpha <= 0 ||
	    config->lossless_pool_bytes < 0 || config->xoff_alpha < 0 || config->ecn_kmin_bytes < 0 ||
	    config->ecn_kmax_bytes < config->ecn_kmin_bytes || config->ecn_pmax < 0 || config->ecn_pmax > 1 ||
	    config->watchdog_action > WATCHDOG_FORWARD)
		return -EINVAL;
	f->sw[sw].config = *config;
	/* Marking is repeatable with the seed of the fabric, and different at every port. */
	for (i = 0; i < f->config.ports; i++)
		if (f->port[i].config.kind == DEVICE_SWITCH && f->port[i].config.node == sw)
			f->port[i].random = mix64(config->hash_seed ^ (uint64_t)(i + 1) << 32) | 1;
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

/* Control frames are in no count of frames, so not in pool_used either. */
uint32_t packet_allocate(struct fabric *f, enum packet_kind kind)
{
	struct telemetry_global *g = f->telemetry.global;
	uint32_t packet = f->free_packets;

	if (packet != NONE)
		f->free_packets = f->packet[packet].next;
	else if (g->pool_peak < f->config.pool_frames)
		packet = (uint32_t)g->pool_peak++;
	else
		return NONE;
	g->pool_used += kind == PACKET_DATA;
	f->packet[packet].kind = (uint16_t)kind;
	f->packet[packet].ingress = NONE;
	return packet;
}

void packet_free(struct fabric *f, uint32_t packet)
{
	f->packet[packet].next = f->free_packets;
	f->free_packets = packet;
	f->telemetry.global->pool_used -= f->packet[packet].kind == PACKET_DATA;
}

void fabric_drop(struct fabric *f, uint32_t port, enum drop_reason reason, const struct packet *packet)
{
	struct telemetry_port *t = &f->telemetry.port[port];
	struct telemetry_queue *queue = &t->queue[packet->traffic_class];
	struct trace_record record = {
		.t_ns = f->now_ns, .flow = packet->flow, .psn = packet->psn, .bytes = packet->len,
		.arg = (uint32_t)queue->depth_bytes, .port = (uint16_t)port, .kind = TRACE_DROP, .reason = (uint8_t)reason,
	};

	t->dropped[reason]++;
	queue->dropped_frames++;
	queue->dropped_bytes += packet->len;
	if (packet->flow != NONE)
		f->telemetry.flow[packet->flow].dropped_frames++;
	telemetry_trace(&f->telemetry, &record);
}

static void move_time(struct fabric *f, int64_t now_ns)
{
	if (now_ns <= f->now_ns)
		return;
	f->now_ns = now_ns;
	if (f->config.flow_control != FLOW_CONTROL_NONE)
		buffer_write_off(f);
}

/* A frame that comes out of a switch carries when it went in: 40 bits of microseconds, so the difference wraps. */
static void left_switch(struct fabric *f, uint32_t sw, const struct frame_metadata *m, int64_t arrival_ns)
{
	uint64_t inside_us = ((uint64_t)arrival_ns / 1000 - m->time_us) & 0xffffffffffull;

	/* The kernel stamps arrivals with the wall clock, which may have been set back a moment ago. */
	if (inside_us >> 39)
		inside_us = 0;
	f->telemetry.sw[sw].out_frames++;
	histogram_add(&f->telemetry.sw[sw].inside_us, inside_us);
}

/* Why the fabric does not carry a frame that `port`'s device emitted; otherwise what is to be known of it. */
static enum drop_reason classify(const struct fabric *f, const struct port *p, const uint8_t *frame, uint32_t len,
				 struct frame_info *info, struct frame_metadata *metadata)
{
	enum drop_reason reason = frame_parse(frame, len, f->config.frame_bytes, info);

	if (reason == DROP_NONE && p->config.kind == DEVICE_SWITCH && !frame_read_metadata(frame, metadata))
		reason = DROP_FOREIGN_MAC;
	return reason;
}

static void enqueue(struct fabric *f, uint32_t port, const struct packet *description, const uint8_t *frame, uint8_t ecn)
{
	enum drop_reason reason = tm_admit(f, port, description->traffic_class, description->len, description->ingress);
	uint32_t index = reason == DROP_NONE ? packet_allocate(f, PACKET_DATA) : NONE;

	if (index == NONE) {
		fabric_drop(f, port, reason == DROP_NONE ? DROP_POOL : reason, description);
		if (description->ingress != NONE)
			buffer_release(f, description->ingress, description->traffic_class, description->len, description->enqueued_ns);
		return;
	}
	f->packet[index] = *description;
	memcpy(packet_frame(f, index), frame, description->len);
	if (f->port[port].config.kind == DEVICE_SWITCH)
		ecn_mark(f, port, index, ecn);
	tm_enqueue(f, port, index);
}

void fabric_rx(struct fabric *f, uint32_t port, const uint8_t *frame, uint32_t len, int64_t arrival_ns)
{
	struct port *p = &f->port[port];
	struct telemetry_port *t = &f->telemetry.port[port];
	struct packet packet = { .len = len, .ingress = NONE, .kind = PACKET_DATA, .enqueued_ns = arrival_ns };
	struct frame_info info;
	struct frame_metadata metadata;
	struct pfc_frame pfc;
	enum drop_reason reason;

	assert(port < f->config.ports);
	move_time(f, arrival_ns);
	if (f->config.flow_control == FLOW_CONTROL_PFC && len <= f->config.frame_bytes && frame_read_pfc(frame, len, &pfc)) {
		pfc_from_device(f, port, frame, len, arrival_ns);
		return;
	}
	reason = classify(f, p, frame, len, &info, &metadata);
	if (reason != DROP_NONE) {
		t->dropped[reason]++;
		return;
	}
	tm_advance_port(f, port);
	packet.digest = flow_digest(&info.key);
	packet.flow = flow_lookup(f, &info.key, packet.digest);
	packet.psn = info.psn;
	packet.traffic_class = f->config.dscp_class[info.dscp] % MAX_CLASSES;
	t->rx_frames++;
	t->rx_bytes += len;
	if (p->config.kind == DEVICE_SWITCH) {
		left_switch(f, p->config.node, &metadata, arrival_ns);
		flow_leaves_switch(f, p->config.node, packet.flow, info.psn, port);
		if (f->config.flow_control != FLOW_CONTROL_NONE)
			packet.ingress = buffer_came_out(f, p->config.node, &metadata, packet.traffic_class, len);
	} else if (packet.flow != NONE) {
		f->telemetry.flow[packet.flow].sent_frames++;
		f->telemetry.flow[packet.flow].sent_bytes += len;
	}
	enqueue(f, port, &packet, frame, info.ecn);
}

static void record_series(struct fabric *f)
{
	struct telemetry *t = &f->telemetry;
	uint8_t *row = t->series + t->global->series_head % f->config.series_rows * t->series_row_bytes;
	uint32_t *depth = (uint32_t *)(void *)(row + sizeof(int64_t));
	uint32_t port, c;

	memcpy(row, &f->now_ns, sizeof f->now_ns);
	for (port = 0; port < f->config.ports; port++)
		for (c = 0; c < MAX_CLASSES; c++)
			if (f->config.series_classes >> c & 1)
				*depth++ = (uint32_t)t->port[port].queue[c].depth_bytes;
	__atomic_store_n(&t->global->series_head, t->global->series_head + 1, __ATOMIC_RELEASE);
}

static void each_active_port(struct fabric *f, void (*advance)(struct fabric *f, uint32_t port))
{
	uint32_t word;

	for (word = 0; word <= f->config.ports / 64; word++) {
		uint64_t bits = f->active[word];

		for (; bits != 0; bits &= bits - 1)
			advance(f, word * 64 + (uint32_t)__builtin_ctzll(bits));
	}
}

static int has_watchdog(const struct fabric *f)
{
	return f->config.watchdog_poll_ns > 0 && f->config.flow_control == FLOW_CONTROL_PFC;
}

void fabric_advance(struct fabric *f, int64_t now_ns)
{
	move_time(f, now_ns);
	/* Whom a pause or a credit reaches must know before it sends what it could have sent meanwhile. */
	if (f->config.flow_control != FLOW_CONTROL_NONE)
		each_active_port(f, tm_land);
	each_active_port(f, tm_advance_port);
	if (has_watchdog(f) && f->now_ns >= f->watchdog_next_ns) {
		watchdog_poll(f);
		f->watchdog_next_ns = f->now_ns + f->config.watchdog_poll_ns;
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
	int64_t next = NEVER, at;
	uint32_t port, word, active = 0;

	if (f->outs > 0)
		return f->now_ns;
	for (port = 0; port < f->config.ports; port++) {
		at = tm_next_ns(f, port);
		if (at < next)
			next = at;
	}
	for (word = 0; word <= f->config.ports / 64; word++)
		active |= f->active[word] != 0;
	if (active && has_watchdog(f) && f->watchdog_next_ns < next)
		next = f->watchdog_next_ns;
	return next;
}
