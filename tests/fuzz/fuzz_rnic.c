/*
 * libFuzzer: two NICs with two connected queue pairs each, and everything that the outside world can do to them.
 *
 * The input is a list of steps of 16 bytes: hand a NIC a frame of the input's own, lose, repeat, reorder or bend a frame
 * that a NIC emitted (and mend its checksums, or nothing would get past the ICRC), post work, poll, call any control
 * operation with any arguments, scribble over the queues that agents can write to, let time pass.
 *
 * Beyond what the sanitizers see: as long as nobody changed the set-up by control operations or scribbling, memory that
 * was not registered for remote writing keeps its contents, whatever packets come.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include "core/icrc.h"
#include "core/rnic.h"

enum { NICS = 2, QPS = 2, STEP_BYTES = 16, MAX_STEPS = 256, MAX_FRAME = 4300, KEPT_FRAMES = 16, ARENA_BYTES = 32768 };
enum { OPEN_BYTES = 4096, GUARD_BYTES = 4096, GUARD = 0xa5, PATH_MTU = 256, REACH = 4608, MAX_MESSAGE = 1024 };
enum step { RAW_FRAME, KEPT_FRAME, NETWORK, POST_SEND, POST_RECV, POLL, CONTROL, SCRIBBLE, WAIT, STEPS };

#define CHECK(condition) do { if (!(condition)) __builtin_trap(); } while (0)

struct side {
	struct rnic *nic;
	uint8_t *shared;
	uint64_t base;             /* address of the open region */
	uint32_t key, pd, cq, qp_num[QPS];
	uint64_t guard_offset;     /* in the shared memory */
};

static struct { uint32_t from, len; uint8_t bytes[MAX_FRAME]; } kept[KEPT_FRAMES];
static uint32_t kept_count, carried;

/*
 * A NIC has 20 MB of which an input touches little. So the blocks are mapped once, and between inputs the kernel takes
 * back the pages that were touched; to clear or to allocate all of it would be ten times slower.
 */
static void *zeroed(void **block, size_t bytes)
{
	size_t mapped = (bytes + 2 * 4096 - 1) / 4096 * 4096;

	if (*block == NULL) {
		*block = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(*block != MAP_FAILED);
		ASAN_POISON_MEMORY_REGION((uint8_t *)*block + bytes, mapped - bytes);
	}
	CHECK(madvise(*block, mapped, MADV_DONTNEED) == 0);
	return *block;
}

static void keep(void *ctx, uint32_t nic, const uint8_t *frame, uint32_t len)
{
	uint32_t slot = kept_count++ % KEPT_FRAMES;

	(void)ctx;
	CHECK(nic < NICS && len <= MAX_FRAME);
	kept[slot].from = nic;
	kept[slot].len = len;
	memcpy(kept[slot].bytes, frame, len);
}

static struct control_request call(struct side *side, uint32_t op, const int64_t arg[CONTROL_ARGS])
{
	struct control_request request = { .target = CONTROL_NIC, .op = op };

	memcpy(request.arg, arg, sizeof request.arg);
	rnic_control(side->nic, &request);
	CHECK(request.status <= 0);
	return request;
}

static struct control_request must(struct side *side, uint32_t op, const int64_t arg[CONTROL_ARGS])
{
	struct control_request request = call(side, op, arg);

	CHECK(request.status == 0);
	return request;
}

#define ARGS(...) ((const int64_t[CONTROL_ARGS]){ __VA_ARGS__ })

static void open_side(struct side *side, uint32_t index, struct telemetry *telemetry)
{
	struct rnic_config config = {
		.index = index, .port = index, .ip = 0x0a000001 + index, .mtu_bytes = PATH_MTU, .dscp = 26,
		.mac = { 2, 0, 0, 0, 0, (uint8_t)index }, .gateway_mac = { 2, 9, 9, 9, 9, 9 }, .rate_bps = 1e7,
		.slowdown = 10000, .arena_bytes = ARENA_BYTES,
	};
	static void *nics[NICS], *shared[NICS];
	struct control_request region;
	uint32_t i;

	side->nic = zeroed(&nics[index], rnic_bytes());
	side->shared = zeroed(&shared[index], rnic_shared_bytes(ARENA_BYTES));
	CHECK(rnic_init(side->nic, &config, side->shared, telemetry) == 0);
	side->pd = (uint32_t)must(side, RNIC_ALLOC_PD, ARGS(0)).result[0];
	region = must(side, RNIC_REG_MR, ARGS(side->pd, OPEN_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	side->key = (uint32_t)region.result[1];
	side->base = (uint64_t)region.result[2];
	region = must(side, RNIC_REG_MR, ARGS(side->pd, GUARD_BYTES, IBV_ACCESS_LOCAL_WRITE));
	side->guard_offset = (uint64_t)region.result[3];
	memset(side->shared + side->guard_offset, GUARD, GUARD_BYTES);
	side->cq = (uint32_t)must(side, RNIC_CREATE_CQ, ARGS(16)).result[0];
	for (i = 0; i < QPS; i++)
		side->qp_num[i] = (uint32_t)must(side, RNIC_CREATE_QP, ARGS(side->pd, side->cq, side->cq, i)).result[0];
}

static void connect(struct side *side, const struct side *peer, uint32_t peer_index)
{
	uint32_t i;

	for (i = 0; i < QPS; i++) {
		int64_t qp = side->qp_num[i];

		must(side, RNIC_MODIFY_QP, ARGS(qp, IBV_QPS_INIT, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
		must(side, RNIC_MODIFY_QP, ARGS(qp, IBV_QPS_RTR, 0x0a000001 + peer_index, peer->qp_num[i], 0xfffffe, 0, 1, 0));
		must(side, RNIC_MODIFY_QP, ARGS(qp, IBV_QPS_RTS, 0xfffffe, 50000000, 3, 3, i ? 1024 : 0, 0));
		if (i > 0)
			must(side, RNIC_SET_DCQCN, ARGS(qp, 1, 0, 1000000, 4000000, 40000000, 0, 1 << 22, 1 << 30, 0, 1ll << 31, 55000,
			                                4000, 55000, 4096, 2, i, 50000));
	}
}

static uint64_t number(const uint8_t *p, uint32_t bytes)
{
	uint64_t value = 0;

	while (bytes--)
		value = value << 8 | *p++;
	return value;
}

/* A length within the frame that its IP header states, or 0. */
static uint32_t covered_bytes(const uint8_t *frame, uint32_t len)
{
	uint32_t ip_bytes = len >= 58 ? (uint32_t)number(frame + 16, 2) : 0;

	return ip_bytes >= ICRC_COVERED_HEADER_BYTES + ICRC_BYTES && ip_bytes <= len - 14 ? ip_bytes - ICRC_BYTES : 0;
}

static void mend(uint8_t *frame, uint32_t len)
{
	uint32_t covered = covered_bytes(frame, len), sum = 0, i, icrc;

	if (covered == 0)
		return;
	frame[24] = frame[25] = 0;
	for (i = 14; i < 34; i += 2)
		sum += (uint32_t)number(frame + i, 2);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~((sum & 0xffff) + (sum >> 16));
	frame[24] = (uint8_t)(sum >> 8);
	frame[25] = (uint8_t)sum;
	icrc = icrc_compute(frame + 14, covered);
	for (i = 0; i < ICRC_BYTES; i++)
		frame[14 + covered + i] = (uint8_t)(icrc >> 8 * i);
}

/* In a block of exactly its size, so that reading past its end is seen. */
static void receive(struct side *side, uint32_t index, const uint8_t *bytes, uint32_t len, int mended, int64_t now_ns)
{
	uint8_t *frame = malloc(len > 0 ? len : 1);

	CHECK(frame != NULL);
	memcpy(frame, bytes, len);
	if (mended && len >= 6) {
		memcpy(frame, (const uint8_t[6]){ 2, 0, 0, 0, 0, (uint8_t)index }, 6);
		mend(frame, len);
	}
	rnic_rx(side->nic, frame, len, now_ns);
	free(frame);
}

/* One of the last frames, with four bytes exclusive-ored somewhere behind the MAC addresses (zeroes: as it is). */
static void receive_kept(struct side sides[NICS], const uint8_t *step, int64_t now_ns)
{
	uint32_t slot = step[1] % KEPT_FRAMES, at, i;
	uint8_t bytes[MAX_FRAME];

	if (slot >= kept_count)
		return;
	memcpy(bytes, kept[slot].bytes, kept[slot].len);
	at = 12 + (uint32_t)number(step + 2, 2) % (kept[slot].len - 16);
	for (i = 0; i < 4; i++)
		bytes[at + i] ^= step[4 + i];
	receive(&sides[1 - kept[slot].from], 1 - kept[slot].from, bytes, kept[slot].len, !(step[8] & 1), now_ns);
}

/* A network that works: the next frames in order, as long as they are still kept. */
static void carry(struct side sides[NICS], uint32_t count, int64_t now_ns)
{
	if (kept_count - carried > KEPT_FRAMES)
		carried = kept_count - KEPT_FRAMES;
	for (; count > 0 && carried < kept_count; count--, carried++) {
		uint32_t slot = carried % KEPT_FRAMES, to = 1 - kept[slot].from;

		receive(&sides[to], to, kept[slot].bytes, kept[slot].len, 1, now_ns);
	}
}

static void post_send(struct side *side, const struct side *peer, const uint8_t *step, int64_t now_ns)
{
	struct verbs_send_wr wr = {
		.wr_id = step[1], .addr = side->base + number(step + 2, 2) % REACH,
		.remote_addr = peer->base + number(step + 4, 2) % REACH, .earliest_ns = step[6] & 1 ? now_ns + 1000000 : 0,
		.length = (uint32_t)number(step + 8, 2) % MAX_MESSAGE, .lkey = side->key,
		.rkey = peer->key ^ (uint32_t)(step[7] & 3), .imm_data = step[10], .opcode = step[11] % 3, .send_flags = step[12],
	};

	verbs_post_send(side->shared, step[13] % 3, &wr, 1);
}

/* Anywhere in the header's doorbell, the queue pairs and the completion queues: all that agents share with the NIC. */
static void scribble(struct side *side, const uint8_t *step)
{
	const struct verbs_header *header = (const void *)side->shared;
	uint32_t slot = step[1] % 4, at = (uint32_t)number(step + 4, 2);
	uint8_t *qp = side->shared + header->qp_offset + slot * sizeof(struct verbs_queue_pair);
	uint8_t *cq = side->shared + header->cq_offset + slot * sizeof(struct verbs_completion_queue);

	if (step[2] & 1)
		memcpy(side->shared + offsetof(struct verbs_header, doorbell), step + 8, 8);
	else if (step[2] & 2)
		memcpy(qp + at % 256, step + 8, 8); /* its indices and first requests */
	else if (step[2] & 4)
		memcpy(cq + at % 184, step + 8, 8);
	else
		memcpy(qp + at % (sizeof(struct verbs_queue_pair) - 8), step + 8, 8);
}

static void check_guard(const struct side *side)
{
	uint32_t i;

	for (i = 0; i < GUARD_BYTES; i++)
		CHECK(side->shared[side->guard_offset + i] == GUARD);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct telemetry_shape shape = {
		.ports = 2, .switches = 1, .nics = NICS, .classes = 1, .flows = 2, .series_rows = 1, .trace_records = 8,
	};
	static void *block;
	struct telemetry telemetry;
	struct side sides[NICS];
	int64_t now_ns = 1000000000;
	int untouched = 1;
	uint32_t steps = 0, i;

	telemetry_init(&telemetry, zeroed(&block, telemetry_bytes(&shape)), &shape);
	kept_count = carried = 0;
	for (i = 0; i < NICS; i++)
		open_side(&sides[i], i, &telemetry);
	for (i = 0; i < NICS; i++)
		connect(&sides[i], &sides[1 - i], 1 - i);

	while (size >= STEP_BYTES && steps++ < MAX_STEPS) {
		const uint8_t *step = data;
		uint32_t which = step[0] >> 4 & 1, len;
		struct side *side = &sides[which];
		struct verbs_wc wc[4];
		int64_t arg[CONTROL_ARGS] = { step[2], step[3], step[4] };

		data += STEP_BYTES;
		size -= STEP_BYTES;
		switch (step[0] % STEPS) {
		case RAW_FRAME:
			len = (uint32_t)number(step + 2, 2) % MAX_FRAME;
			len = len < size ? len : (uint32_t)size;
			receive(side, which, data, len, step[1] & 1, now_ns);
			data += len;
			size -= len;
			break;
		case KEPT_FRAME:
			receive_kept(sides, step, now_ns);
			break;
		case NETWORK:
			carry(sides, step[1] % KEPT_FRAMES, now_ns);
			break;
		case POST_SEND:
			post_send(side, &sides[1 - which], step, now_ns);
			break;
		case POST_RECV: {
			struct verbs_recv_wr wr = { .wr_id = step[1] };

			verbs_post_recv(side->shared, step[13] % 3, &wr, 1);
			break;
		}
		case POLL:
			if (step[2] & 1)
				verbs_req_notify_cq(side->shared, step[1] % 3);
			verbs_poll_cq(side->shared, step[1] % 3, wc, 4);
			rnic_set_paused(side->nic, step[2] & 2 ? step[3] : 0);
			rnic_event_pending(side->nic);
			break;
		case CONTROL:
			/* Small numbers, which are often objects that exist, or one of 64 bits anywhere. */
			for (i = 3; i < CONTROL_ARGS; i++)
				arg[i] = step[5] >> (i & 7) & 1 ? step[6] : 0;
			if (step[7] & 1)
				arg[(step[7] >> 4) % CONTROL_ARGS] = (int64_t)number(step + 8, 8);
			if (step[7] & 2)
				arg[0] = side->qp_num[step[2] % QPS];
			call(side, step[1] % 12, arg);
			untouched = 0;
			break;
		case SCRIBBLE:
			scribble(side, step);
			untouched = 0;
			break;
		default:
			now_ns += (int64_t)number(step + 2, 2) * 1000;
		}
		for (i = 0; i < NICS; i++)
			rnic_advance(sides[i].nic, now_ns, keep, NULL);
	}
	for (i = 0; untouched && i < NICS; i++)
		check_guard(&sides[i]);
	return 0;
}
