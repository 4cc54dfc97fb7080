/* The real-time loop, attaching it to interfaces, and the mailbox of the control plane. */
#define _GNU_SOURCE
#include "fabricd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"
#include "sockets.h"

enum { SEND_BATCH = 64, NANOSECONDS = 1000000000, OFFSET_ATTEMPTS = 5 };

struct nic {
	struct rnic *rnic;
	uint32_t port; /* its port of the fabric */
	struct ring ring;
	int send_fd;   /* in the host's namespace */
	int sink_fd;   /* holds UDP port 4791, so that the host's kernel does not answer "port unreachable" */
	int event_fd;
};

struct fabricd {
	struct fabricd_config config;
	struct fabric *fabric;
	struct telemetry *telemetry;
	struct ring *port;          /* one a port */
	struct nic *nic;
	int send_fd;                /* all taps are in our namespace: one socket sends to all of them */
	int64_t realtime_offset_ns; /* CLOCK_REALTIME minus CLOCK_MONOTONIC */
	uint32_t overflow_at;       /* ring whose overflow is read next */
	int scheduler;
	int stop;
	struct control_request *mail;
};

static int64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (int64_t)t.tv_sec * NANOSECONDS + t.tv_nsec;
}

/*
 * CLOCK_REALTIME minus CLOCK_MONOTONIC. A virtual machine may lose its processor for milliseconds between two readings,
 * and until the next measurement every frame would seem to arrive that much earlier: the closest pair counts.
 */
static int64_t clock_offset_ns(void)
{
	int64_t before_ns, realtime_ns, apart_ns, closest_ns = INT64_MAX, offset_ns = 0;
	int attempt;

	for (attempt = 0; attempt < OFFSET_ATTEMPTS; attempt++) {
		before_ns = clock_ns(CLOCK_MONOTONIC);
		realtime_ns = clock_ns(CLOCK_REALTIME);
		apart_ns = clock_ns(CLOCK_MONOTONIC) - before_ns;
		if (apart_ns < closest_ns) {
			closest_ns = apart_ns;
			offset_ns = realtime_ns - before_ns - apart_ns / 2;
		}
	}
	return offset_ns;
}

struct fabricd *fabricd_new(struct fabric *fabric, const struct fabricd_config *config)
{
	struct fabricd *d = calloc(1, sizeof *d);
	uint32_t i;

	if (d == NULL)
		return NULL;
	d->config = *config;
	d->fabric = fabric;
	d->telemetry = fabric_telemetry(fabric);
	d->port = calloc(config->ports, sizeof *d->port);
	d->nic = calloc(config->nics ? config->nics : 1, sizeof *d->nic);
	d->send_fd = d->port == NULL || d->nic == NULL ? -1 : socket_sender(1);
	for (i = 0; d->port != NULL && i < config->ports; i++)
		d->port[i].fd = -1;
	for (i = 0; d->nic != NULL && i < config->nics; i++)
		d->nic[i] = (struct nic){ .ring.fd = -1, .send_fd = -1, .sink_fd = -1, .event_fd = -1 };
	if (d->send_fd < 0) {
		fabricd_free(d);
		return NULL;
	}
	return d;
}

int fabricd_attach_port(struct fabricd *d, uint32_t port, const char *tap)
{
	if (port >= d->config.ports)
		return -EINVAL;
	return ring_open(&d->port[port], tap, d->config.ring_frames, d->config.frame_bytes, 0);
}

static int attach_inside(struct fabricd *d, struct nic *n, const char *interface)
{
	struct sockaddr_ll address = { .sll_family = AF_PACKET };
	int status = ring_open(&n->ring, interface, d->config.ring_frames, d->config.frame_bytes, 1);

	if (status < 0)
		return status;
	n->send_fd = socket_sender(0);
	if (n->send_fd < 0)
		return n->send_fd;
	address.sll_ifindex = n->ring.ifindex;
	if (bind(n->send_fd, (struct sockaddr *)&address, sizeof address) < 0)
		return -errno;
	n->sink_fd = socket_sink();
	return n->sink_fd < 0 ? n->sink_fd : 0;
}

int fabricd_attach_nic(struct fabricd *d, uint32_t nic, uint32_t port, struct rnic *rnic, const char *netns,
		       const char *interface)
{
	int home, there, status;

	if (nic >= d->config.nics || port >= d->config.ports)
		return -EINVAL;
	home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	there = open(netns, O_RDONLY | O_CLOEXEC);
	if (home < 0 || there < 0 || setns(there, CLONE_NEWNET) < 0) {
		status = -errno;
	} else {
		status = attach_inside(d, &d->nic[nic], interface);
		/* In the wrong namespace every later step would do harm. */
		if (setns(home, CLONE_NEWNET) < 0)
			abort();
	}
	if (there >= 0)
		close(there);
	if (home >= 0)
		close(home);
	if (status == 0) {
		d->nic[nic].port = port;
		d->nic[nic].rnic = rnic;
	}
	return status;
}

int fabricd_set_eventfd(struct fabricd *d, uint32_t nic, int fd)
{
	if (nic >= d->config.nics)
		return -EINVAL;
	__atomic_store_n(&d->nic[nic].event_fd, fd, __ATOMIC_RELEASE);
	return 0;
}

static int64_t arrival_ns(const struct fabricd *d, int64_t realtime_ns, int64_t now_ns)
{
	int64_t arrival = realtime_ns - d->realtime_offset_ns;

	/* A step of the wall clock must not move a frame by more than a tick or two. */
	if (arrival > now_ns || arrival < now_ns - 100 * d->config.tick_ns)
		return now_ns;
	return arrival;
}

static void receive(struct fabricd *d, int64_t now_ns)
{
	const uint8_t *frame;
	uint32_t i, len;
	int64_t realtime_ns;

	for (i = 0; i < d->config.ports; i++) {
		struct ring *ring = &d->port[i];

		while (ring->memory != NULL && (frame = ring_peek(ring, &len, &realtime_ns)) != NULL) {
			fabric_rx(d->fabric, i, frame, len, arrival_ns(d, realtime_ns, now_ns));
			ring_release(ring);
		}
	}
	for (i = 0; i < d->config.nics; i++) {
		struct ring *ring = &d->nic[i].ring;

		while (d->nic[i].rnic != NULL && (frame = ring_peek(ring, &len, &realtime_ns)) != NULL) {
			if (len <= d->config.frame_bytes)
				rnic_rx(d->nic[i].rnic, frame, len, arrival_ns(d, realtime_ns, now_ns));
			ring_release(ring);
		}
	}
}

static void emit(void *ctx, uint32_t nic, const uint8_t *frame, uint32_t len)
{
	struct fabricd *d = ctx;

	if (send(d->nic[nic].send_fd, frame, len, MSG_DONTWAIT) != (ssize_t)len)
		d->telemetry->global->send_failed++;
}

static void advance_nics(struct fabricd *d, int64_t now_ns)
{
	const uint64_t one = 1;
	uint32_t i;

	for (i = 0; i < d->config.nics; i++) {
		struct nic *n = &d->nic[i];
		int fd;

		if (n->rnic == NULL)
			continue;
		rnic_set_paused(n->rnic, fabric_paused_classes(d->fabric, n->port));
		rnic_advance(n->rnic, now_ns, emit, d);
		fd = __atomic_load_n(&n->event_fd, __ATOMIC_ACQUIRE);
		/* An eventfd that is full is readable, which is all that the agent waits for. */
		if (fd >= 0 && rnic_event_pending(n->rnic) && write(fd, &one, sizeof one) < 0)
			continue;
	}
}

static void send_due(struct fabricd *d)
{
	struct mmsghdr message[SEND_BATCH];
	struct iovec iov[SEND_BATCH];
	struct sockaddr_ll address[SEND_BATCH];
	const struct fabric_out *out;
	uint32_t count, i, n;
	int sent;

	out = fabric_out(d->fabric, &count);
	while (count > 0) {
		n = count < SEND_BATCH ? count : SEND_BATCH;
		memset(message, 0, sizeof message[0] * n);
		for (i = 0; i < n; i++) {
			iov[i] = (struct iovec){ (void *)(uintptr_t)out[i].frame, out[i].len };
			address[i] = (struct sockaddr_ll){
				.sll_family = AF_PACKET, .sll_ifindex = d->port[out[i].port].ifindex, .sll_halen = 6,
			};
			message[i].msg_hdr = (struct msghdr){
				.msg_name = &address[i], .msg_namelen = sizeof address[i], .msg_iov = &iov[i], .msg_iovlen = 1,
			};
		}
		sent = sendmmsg(d->send_fd, message, n, MSG_DONTWAIT);
		if (sent <= 0) {
			/* The first one cannot be sent: it is lost and counted, the others get their turn. */
			d->telemetry->global->send_failed++;
			sent = 1;
		}
		out += sent;
		count -= (uint32_t)sent;
	}
	fabric_out_done(d->fabric);
}

/* One ring's overflow counter a tick: it costs a system call. */
static void poll_overflow(struct fabricd *d)
{
	uint32_t rings = d->config.ports + d->config.nics;
	struct ring *ring;
	uint64_t before;

	if (rings == 0)
		return;
	d->overflow_at = (d->overflow_at + 1) % rings;
	ring = d->overflow_at < d->config.ports ? &d->port[d->overflow_at] : &d->nic[d->overflow_at - d->config.ports].ring;
	before = ring->overflow;
	if (ring->memory != NULL)
		ring_poll_overflow(ring);
	d->telemetry->global->ring_overflow += ring->overflow - before;
}

static void read_mail(struct fabricd *d)
{
	struct control_request *request = __atomic_load_n(&d->mail, __ATOMIC_ACQUIRE);

	if (request == NULL)
		return;
	if (request->target == CONTROL_FABRIC)
		fabric_control(d->fabric, request);
	else if (request->index < d->config.nics && d->nic[request->index].rnic != NULL)
		rnic_control(d->nic[request->index].rnic, request);
	else
		request->status = -ENODEV;
	__atomic_store_n(&d->mail, NULL, __ATOMIC_RELEASE);
}

static int become_real_time(const struct fabricd *d)
{
	struct sched_param param = { .sched_priority = d->config.priority };

	if (pthread_setschedparam(pthread_self(), SCHED_RR, &param) == 0)
		return SCHEDULER_RR;
	/* Containers and RT_GROUP_SCHED refuse it; the verdict judges whether this is good enough. */
	if (setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -20) == 0)
		return SCHEDULER_NICE;
	return SCHEDULER_OTHER;
}

void fabricd_run(struct fabricd *d)
{
	int64_t next_ns = clock_ns(CLOCK_MONOTONIC), now_ns;
	uint64_t ticks = 0;

	__atomic_store_n(&d->scheduler, become_real_time(d), __ATOMIC_RELEASE);
	while (!__atomic_load_n(&d->stop, __ATOMIC_ACQUIRE)) {
		if (ticks++ % 1024 == 0)
			d->realtime_offset_ns = clock_offset_ns();
		now_ns = clock_ns(CLOCK_MONOTONIC);
		receive(d, now_ns);
		advance_nics(d, now_ns);
		fabric_advance(d->fabric, now_ns);
		send_due(d);
		if (ticks % 16 == 0)
			poll_overflow(d);
		read_mail(d);
		next_ns += d->config.tick_ns;
		if (next_ns <= now_ns)
			next_ns = now_ns + d->config.tick_ns;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME,
				&(struct timespec){ next_ns / NANOSECONDS, next_ns % NANOSECONDS }, NULL);
	}
}

void fabricd_stop(struct fabricd *d)
{
	__atomic_store_n(&d->stop, 1, __ATOMIC_RELEASE);
}

int fabricd_call(struct fabricd *d, struct control_request *request)
{
	int64_t deadline = clock_ns(CLOCK_MONOTONIC) + 5ll * NANOSECONDS;

	__atomic_store_n(&d->mail, request, __ATOMIC_RELEASE);
	while (__atomic_load_n(&d->mail, __ATOMIC_ACQUIRE) != NULL) {
		if (clock_ns(CLOCK_MONOTONIC) > deadline)
			return -ETIMEDOUT;
		clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ 0, 50000 }, NULL);
	}
	return request->status;
}

int fabricd_scheduler(const struct fabricd *d)
{
	return __atomic_load_n(&d->scheduler, __ATOMIC_ACQUIRE);
}

void fabricd_detach(struct fabricd *d, uint32_t ring)
{
	struct nic *n;

	if (ring < d->config.ports) {
		ring_close(&d->port[ring]);
		return;
	}
	n = &d->nic[ring - d->config.ports];
	ring_close(&n->ring);
	if (n->send_fd >= 0)
		close(n->send_fd);
	if (n->sink_fd >= 0)
		close(n->sink_fd);
	n->send_fd = n->sink_fd = -1;
}

void fabricd_free(struct fabricd *d)
{
	uint32_t i;

	for (i = 0; d->port != NULL && d->nic != NULL && i < d->config.ports + d->config.nics; i++)
		fabricd_detach(d, i);
	if (d->send_fd >= 0)
		close(d->send_fd);
	free(d->port);
	free(d->nic);
	free(d);
}
