/*
 * libFuzzer: arbitrary frames at arbitrary ports and times of a small fabric (two hosts, two switches).
 *
 * The input is a list of steps, each a header of eight bytes and then the frame's bytes. A step may ask for a valid
 * IPv4 and UDP header and for valid metadata, so that the fuzzer does not have to find them before it gets anywhere.
 * What comes out is now and then fed back in at the port that a switch would choose.
 *
 * Beyond what the sanitizers see, at the end every frame is accounted for: accepted = delivered + dropped, no packet
 * memory is held, no queue is occupied.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/fabric.h"
#include "core/frame.h"

enum { PORTS = 6, SWITCHES = 2, HOSTS = 2, FRAME_BYTES = 1514, POOL_FRAMES = 64, FLOWS = 8 };
enum { STEP_BYTES = 8, MAX_STEPS = 512 };
enum { WITH_HEADER = 1, WITH_METADATA = 2, WITH_LENGTHS = 4, FORWARD = 8, LINK_CHANGE = 16, RETUNE = 32, LATE = 64 };

/* h0 - s0 - s1 - h1: ports 0 (h0), 1 and 2 (s0), 3 and 4 (s1), 5 (h1). A switch forwards from one port to its other. */
static const struct { uint32_t kind, node, number, peer, other; } WIRING[PORTS] = {
	{ DEVICE_HOST, 0, 0, 1, 0 }, { DEVICE_SWITCH, 0, 1, 0, 2 }, { DEVICE_SWITCH, 0, 2, 3, 1 },
	{ DEVICE_SWITCH, 1, 1, 2, 4 }, { DEVICE_SWITCH, 1, 2, 5, 3 }, { DEVICE_HOST, 1, 0, 4, 0 },
};

#define CHECK(condition) do { if (!(condition)) __builtin_trap(); } while (0)

/* The input's first byte chooses the flow control; every DSCP has a class by its low bits, so all classes are met. */
static struct fabric_config configuration(uint8_t choice)
{
	struct fabric_config config = {
		.ports = PORTS, .switches = SWITCHES, .nics = HOSTS, .flows = FLOWS, .frame_bytes = FRAME_BYTES,
		.pool_frames = POOL_FRAMES, .series_rows = 4, .trace_records = 16, .series_classes = 0x0f,
		.flow_control = choice % 3, .pause_quanta = 1000, .watchdog_poll_ns = choice & 128 ? 3000000 : 0,
	};
	uint32_t i;

	for (i = 0; i < sizeof config.dscp_class; i++)
		config.dscp_class[i] = (uint8_t)(i % MAX_CLASSES);
	return config;
}

static void *zeroed(size_t bytes)
{
	size_t rounded = (bytes + 63) & ~(size_t)63;
	void *memory = aligned_alloc(64, rounded);

	CHECK(memory != NULL);
	return memset(memory, 0, rounded);
}

static struct fabric *build(void *memory, void *telemetry, const struct fabric_config *config)
{
	struct fabric *f = fabric_init(memory, telemetry, config);
	struct switch_config sw = {
		.hash_seed = 1, .flowlet_gap_ns = 5000000, .lossy_pool_bytes = 6000, .alpha = 1.0, .lossless_pool_bytes = 8000,
		.xoff_alpha = 0.5, .ecn_kmin_bytes = 500, .ecn_kmax_bytes = 2000, .ecn_pmax = 0.5, .ecn_classes = 0x0f,
		.watchdog_action = WATCHDOG_DROP, .watchdog_detect_ns = 5000000, .watchdog_restore_ns = 5000000,
	};
	uint32_t i;

	for (i = 0; i < PORTS; i++) {
		struct port_config port = {
			.kind = WIRING[i].kind, .node = WIRING[i].node, .number = WIRING[i].number, .peer = WIRING[i].peer,
			.rate_bps = 10000000, .delay_ns = 50000, .buffer_bytes = 4000, .mac = { 2, 1, 1, 1, 1, (uint8_t)i },
			.lossless_classes = 0x18, .strict_classes = 0xc0, .ets_share = { 1, 2, 3, 4, 5, 6 },
			.xoff_bytes = WIRING[i].kind == DEVICE_HOST ? 1000 : 0, .headroom_bytes = 2000, .credit_bytes = 8192,
		};

		CHECK(fabric_set_port(f, i, &port) == 0);
	}
	for (i = 0; i < SWITCHES; i++)
		CHECK(fabric_set_switch(f, i, &sw) == 0);
	return f;
}

/* Overwrites the beginning of the frame, as far as there is one, with a valid RoCE header to one of a few flows. */
static void write_header(uint8_t *frame, uint32_t len, uint8_t flow, int with_lengths)
{
	uint8_t header[42] = {
		[12] = 0x08, [14] = 0x45, [22] = 64, [23] = 17, [26] = 10, [30] = 10, [33] = 1, [34] = 0xc0, [36] = 0x12, [37] = 0xb7,
	};
	uint32_t total = len > ETHERNET_HEADER_BYTES ? len - ETHERNET_HEADER_BYTES : 0;

	header[16] = (uint8_t)(total >> 8);
	header[17] = (uint8_t)total;
	header[29] = flow & 3;
	header[35] = flow >> 2;
	if (with_lengths)
		memcpy(frame, header, len < sizeof header ? len : sizeof header);
	else if (len >= 24)
		memcpy(frame + 12, header + 12, 4); /* Ethertype and version only: the rest is the fuzzer's */
}

/* Hands out what is due; with `forward` the two switches pass it on, as their rules would. */
static uint64_t take_out(struct fabric *f, int forward, int64_t now_ns)
{
	static uint8_t copy[POOL_FRAMES][FRAME_BYTES];
	static struct fabric_out out[POOL_FRAMES];
	uint32_t count, i, control = 0;
	const struct fabric_out *due = fabric_out(f, &count);

	CHECK(count <= POOL_FRAMES);
	for (i = 0; i < count; i++) {
		CHECK(due[i].port < PORTS && due[i].len >= ETHERNET_HEADER_BYTES && due[i].len <= FRAME_BYTES);
		out[i] = due[i];
		memcpy(copy[i], due[i].frame, due[i].len);
		control += due[i].frame[12] == 0x88; /* MAC control: shown to the device, no delivery */
	}
	fabric_out_done(f);
	for (i = 0; forward && i < count; i++)
		if (WIRING[out[i].port].kind == DEVICE_SWITCH)
			fabric_rx(f, WIRING[out[i].port].other, copy[i], out[i].len, now_ns);
	return count - control;
}

static void check_conservation(struct fabric *f, uint64_t delivered)
{
	const struct telemetry *t = fabric_telemetry(f);
	uint64_t accepted = 0, dropped = 0, handed_out = 0;
	uint32_t port, c, reason;

	for (port = 0; port < PORTS; port++) {
		accepted += t->port[port].rx_frames;
		handed_out += t->port[port].delivered_frames;
		for (reason = DROP_TAIL; reason <= DROP_BIT_ERROR; reason++)
			dropped += t->port[port].dropped[reason];
		for (c = 0; c < MAX_CLASSES; c++) {
			CHECK(t->port[port].queue[c].depth_bytes == 0 && t->port[port].queue[c].depth_frames == 0);
			CHECK(t->port[port].priority_group[c].curr_occupancy_bytes == 0);
		}
	}
	CHECK(handed_out == delivered);
	CHECK(accepted == delivered + dropped);
	CHECK(t->global->pool_used == 0);
	CHECK(t->sw[0].buffer_used_bytes == 0 && t->sw[1].buffer_used_bytes == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fabric_config config = configuration(size > 0 ? data[0] : 0);
	void *memory = zeroed(fabric_bytes(&config)), *telemetry = zeroed(fabric_telemetry_bytes(&config));
	struct fabric *f = build(memory, telemetry, &config);
	uint64_t delivered = 0;
	int64_t now_ns = 1000000;
	uint32_t steps = 0;

	if (size > 0) {
		data++;
		size--;
	}
	while (size >= STEP_BYTES && steps++ < MAX_STEPS) {
		uint8_t flags = data[0], port = data[1] % PORTS;
		uint32_t wanted = (uint32_t)(data[2] << 8 | data[3]), len;
		int64_t arrival_ns = now_ns;
		struct control_request request = {
			.index = data[6] % SWITCHES, .op = FABRIC_SET_SWITCH, .arg = { data[7], data[6] * 1000 },
		};
		struct frame_metadata metadata = { .ingress_port = data[6], .time_us = data[7] };
		uint8_t *frame;

		now_ns += (data[4] << 8 | data[5]) * 1000;
		if (flags & LATE)
			arrival_ns += (now_ns - arrival_ns) / 2;
		else
			arrival_ns = now_ns;
		data += STEP_BYTES;
		size -= STEP_BYTES;
		if (flags & RETUNE) {
			fabric_control(f, &request);
			/* Any operation with the same small arguments: refused or harmless. */
			request.op = FABRIC_SET_ECN + data[-1] % 8;
			request.index = port;
			if (request.op == FABRIC_SET_DRAIN)
				request.arg[0] = request.arg[0] * 100000; /* or it would take days */
			if (request.op == FABRIC_SET_PORT_BUFFER)
				request.arg[0] = request.arg[0] * 100 - 1; /* or it would be refused */
			fabric_control(f, &request);
		}
		if (flags & LINK_CHANGE) {
			request = (struct control_request){ .index = port, .op = FABRIC_SET_PORT_UP, .arg = { request.arg[0] & 1 } };
			fabric_control(f, &request);
			request = (struct control_request){ .op = FABRIC_SERIES_INTERVAL, .arg = { 100000 } };
			fabric_control(f, &request);
		}
		/* A frame may be longer than its bytes in the input (zeroes follow), up to a giant. */
		len = wanted % (FRAME_BYTES + 64);
		frame = calloc(1, len > 0 ? len : 1);
		CHECK(frame != NULL);
		memcpy(frame, data, len < size ? len : size);
		data += len < size ? len : size;
		size -= len < size ? len : size;
		if (flags & WITH_HEADER)
			write_header(frame, len, metadata.ingress_port, flags & WITH_LENGTHS);
		if ((flags & WITH_METADATA) && len >= 12)
			frame_write_metadata(frame, &metadata);
		fabric_rx(f, port, frame, len, arrival_ns);
		free(frame);
		fabric_advance(f, now_ns);
		delivered += take_out(f, flags & FORWARD, now_ns);
	}
	/* Frames of one port are no longer than its buffer, so all are out after a while, unless a peer says stop for ever. */
	for (steps = 0; steps < PORTS; steps++) {
		struct control_request calm = { .index = steps, .op = FABRIC_PAUSE_STORM };

		fabric_control(f, &calm);
	}
	for (steps = 0; fabric_next_ns(f) != INT64_MAX; steps++) {
		CHECK(steps < 100000);
		/* From event to event: a receiver may be slower than any fixed step. */
		now_ns = fabric_next_ns(f) > now_ns ? fabric_next_ns(f) : now_ns + 1000;
		fabric_advance(f, now_ns);
		delivered += take_out(f, 0, now_ns);
	}
	check_conservation(f, delivered);
	free(memory);
	free(telemetry);
	return 0;
}
