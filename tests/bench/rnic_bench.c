/*
 * Two soft NICs back to back on one core, in virtual time: how many full data packets a second of CPU carries
 * (send, receive and their share of the ACKs).  The peer, measured in the same process: the kernel's UDP, which moves
 * a datagram of the same size over the loopback interface with one send and one receive call.
 *
 * Prints two numbers, packets a second of CPU: ours and the peer's.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "rnic.h"

enum { MTU_BYTES = 4096, MESSAGE_BYTES = 1 << 20, MESSAGES = 2000, QPS = 4, WIRE = 1024, TICK_NS = 100000 };

static struct {
	uint8_t frame[4200];
	uint32_t len, to;
} wire[WIRE];
static uint32_t wire_head, wire_tail;

static void must(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "rnic_bench: %s failed\n", what);
		exit(1);
	}
}

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void emit(void *ctx, uint32_t nic, const uint8_t *frame, uint32_t len)
{
	(void)ctx;
	must(wire_tail - wire_head < WIRE, "the wire");
	memcpy(wire[wire_tail % WIRE].frame, frame, len);
	wire[wire_tail % WIRE].len = len;
	wire[wire_tail++ % WIRE].to = !nic;
}

static const int64_t *control(struct rnic *nic, struct control_request *request)
{
	rnic_control(nic, request);
	must(request->status == 0, "a control operation");
	return request->result;
}
#define CONTROL(nic, ...) control(nic, &(struct control_request){ __VA_ARGS__ })

struct end {
	struct rnic *nic;
	void *shared;
	int64_t cq, lkey, rkey, address, qp[QPS], slot[QPS];
};

static void open_end(struct end *e, uint32_t index, struct telemetry *telemetry)
{
	struct rnic_config config = {
		.index = index, .port = index, .ip = 0x0a000001 + index, .mtu_bytes = MTU_BYTES, .dscp = 26,
		.rate_bps = 400e9, .arena_bytes = RNIC_ARENA_BYTES,
	};
	const int64_t *result;
	int64_t pd;
	int i;

	e->nic = calloc(1, rnic_bytes());
	e->shared = calloc(1, rnic_shared_bytes(RNIC_ARENA_BYTES));
	must(e->nic != NULL && e->shared != NULL, "memory");
	must(rnic_init(e->nic, &config, e->shared, telemetry) == 0, "rnic_init");
	pd = CONTROL(e->nic, .op = RNIC_ALLOC_PD)[0];
	result = CONTROL(e->nic, .op = RNIC_REG_MR, .arg = { pd, MESSAGE_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE });
	e->lkey = result[0];
	e->rkey = result[1];
	e->address = result[2];
	e->cq = CONTROL(e->nic, .op = RNIC_CREATE_CQ, .arg = { 4096 })[0];
	for (i = 0; i < QPS; i++) {
		result = CONTROL(e->nic, .op = RNIC_CREATE_QP, .arg = { pd, e->cq, e->cq, 1 });
		e->qp[i] = result[0];
		e->slot[i] = result[1];
	}
}

static double our_packets_per_s(void)
{
	struct telemetry_shape shape = { .ports = 2, .nics = 2, .classes = 1, .flows = 4, .series_rows = 4, .trace_records = 1024 };
	struct telemetry telemetry;
	void *block = calloc(1, telemetry_bytes(&shape));
	struct end end[2];
	struct verbs_wc wc[64];
	uint64_t posted = 0, done = 0;
	int64_t now_ns = 0;
	double begin;
	int i, n, got;

	must(block != NULL, "memory");
	telemetry_init(&telemetry, block, &shape);
	for (n = 0; n < 2; n++)
		open_end(&end[n], (uint32_t)n, &telemetry);
	for (n = 0; n < 2; n++) {
		for (i = 0; i < QPS; i++) {
			int64_t qp = end[n].qp[i];

			CONTROL(end[n].nic, .op = RNIC_MODIFY_QP, .arg = { qp, IBV_QPS_INIT, IBV_ACCESS_REMOTE_WRITE });
			CONTROL(end[n].nic, .op = RNIC_MODIFY_QP, .arg = { qp, IBV_QPS_RTR, 0x0a000001 + !n, end[!n].qp[i], 0, 0, 12, 0 });
			CONTROL(end[n].nic, .op = RNIC_MODIFY_QP, .arg = { qp, IBV_QPS_RTS, 0, 1000000000, 7, 7, 256 * 1024, 0 });
		}
	}
	begin = cpu_s();
	while (done < MESSAGES) {
		for (i = 0; i < QPS && posted < MESSAGES; i++) {
			struct verbs_send_wr wr = {
				.addr = (uint64_t)end[0].address, .lkey = (uint32_t)end[0].lkey, .remote_addr = (uint64_t)end[1].address,
				.rkey = (uint32_t)end[1].rkey, .length = MESSAGE_BYTES, .opcode = IBV_WR_RDMA_WRITE,
			};

			posted += verbs_post_send(end[0].shared, (uint32_t)end[0].slot[i], &wr, 1) == 1;
		}
		now_ns += TICK_NS;
		rnic_advance(end[0].nic, now_ns, emit, NULL);
		rnic_advance(end[1].nic, now_ns, emit, NULL);
		for (; wire_head != wire_tail; wire_head++)
			rnic_rx(end[wire[wire_head % WIRE].to].nic, wire[wire_head % WIRE].frame, wire[wire_head % WIRE].len, now_ns);
		got = verbs_poll_cq(end[0].shared, (uint32_t)end[0].cq, wc, 64);
		must(got >= 0, "verbs_poll_cq");
		for (i = 0; i < got; i++)
			must(wc[i].status == IBV_WC_SUCCESS, "a work request");
		done += (uint64_t)got;
	}
	must(telemetry.nic[0].retransmitted_packets == 0, "lossless transfer");
	return (double)telemetry.nic[0].tx_packets / (cpu_s() - begin);
}

static double udp_packets_per_s(void)
{
	static uint8_t datagram[MTU_BYTES];
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	int sender = socket(AF_INET, SOCK_DGRAM, 0), receiver = socket(AF_INET, SOCK_DGRAM, 0), i;
	const int packets = 200000;
	double begin;

	must(bind(receiver, (struct sockaddr *)&address, len) == 0, "bind");
	must(getsockname(receiver, (struct sockaddr *)&address, &len) == 0, "getsockname");
	must(connect(sender, (struct sockaddr *)&address, len) == 0, "connect");
	begin = cpu_s();
	for (i = 0; i < packets; i++) {
		must(send(sender, datagram, sizeof datagram, 0) == MTU_BYTES, "send");
		must(recv(receiver, datagram, sizeof datagram, 0) == MTU_BYTES, "recv");
	}
	return packets / (cpu_s() - begin);
}

int main(void)
{
	printf("%.0f\n", our_packets_per_s());
	printf("%.0f\n", udp_packets_per_s());
	return 0;
}
