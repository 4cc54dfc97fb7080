/* Receive rings. V2 rather than V3: a frame is visible the moment it arrives, not when a block is full. */
#define _GNU_SOURCE
#include "ring.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* A power of two of pages on every architecture, or the kernel refuses it or wastes the rest. */
#define BLOCK_BYTES 65536u

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

/* tcpdump -dd 'udp dst port 4791 and ip[6:2] & 0x3fff = 0' on Ethernet, IPv4 only. */
static struct sock_filter roce_filter[] = {
	{ 0x28, 0, 0, 12 },             /* ldh [12]          ethertype */
	{ 0x15, 0, 8, 0x0800 },         /* jeq IPv4 */
	{ 0x30, 0, 0, 23 },             /* ldb [23]          protocol */
	{ 0x15, 0, 6, 17 },             /* jeq UDP */
	{ 0x28, 0, 0, 20 },             /* ldh [20]          fragment */
	{ 0x45, 4, 0, 0x3fff },         /* jset */
	{ 0xb1, 0, 0, 14 },             /* ldxb 4*([14]&0xf) */
	{ 0x48, 0, 0, 16 },             /* ldh [x+16]        destination port */
	{ 0x15, 0, 1, 4791 },           /* jeq */
	{ 0x06, 0, 0, 0x40000 },        /* accept */
	{ 0x06, 0, 0, 0 },              /* drop */
};

static int configure(struct ring *r, uint32_t frame_bytes, int roce_only)
{
	int version = TPACKET_V2, on = 1;
	struct sock_fprog program = { .len = sizeof roce_filter / sizeof roce_filter[0], .filter = roce_filter };
	struct tpacket_req request = { 0 };
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = r->ifindex };

	r->stride = TPACKET_ALIGN(TPACKET2_HDRLEN + 16 + frame_bytes);
	r->per_block = BLOCK_BYTES / r->stride;
	request.tp_block_size = BLOCK_BYTES;
	request.tp_frame_size = r->stride;
	request.tp_block_nr = (r->frames + r->per_block - 1) / r->per_block;
	request.tp_frame_nr = request.tp_block_nr * r->per_block;
	r->frames = request.tp_frame_nr;
	if (setsockopt(r->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) < 0 ||
	    setsockopt(r->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0 ||
	    setsockopt(r->fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) < 0)
		return -errno;
	if (roce_only && setsockopt(r->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) < 0)
		return -errno;
	r->memory = mmap(NULL, (size_t)BLOCK_BYTES * request.tp_block_nr, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	if (r->memory == MAP_FAILED) {
		r->memory = NULL;
		return -errno;
	}
	if (bind(r->fd, (struct sockaddr *)&address, sizeof address) < 0)
		return -errno;
	return 0;
}

int ring_open(struct ring *r, const char *interface, uint32_t frames, uint32_t frame_bytes, int roce_only)
{
	int status;

	*r = (struct ring){ .frames = frames };
	r->ifindex = (int)if_nametoindex(interface);
	if (r->ifindex == 0)
		return -errno;
	r->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (r->fd < 0)
		return -errno;
	status = configure(r, frame_bytes, roce_only);
	if (status < 0)
		ring_close(r);
	return status;
}

static struct tpacket2_hdr *slot(const struct ring *r)
{
	uint8_t *block = r->memory + (size_t)(r->next / r->per_block) * BLOCK_BYTES;

	return (struct tpacket2_hdr *)(void *)(block + (size_t)(r->next % r->per_block) * r->stride);
}

const uint8_t *ring_peek(const struct ring *r, uint32_t *len, int64_t *realtime_ns)
{
	struct tpacket2_hdr *header = slot(r);

	if (!(__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
		return NULL;
	/* tp_len beyond tp_snaplen means that the frame was cut: the core shall see its true length and call it a giant. */
	*len = header->tp_len > header->tp_snaplen ? header->tp_len : header->tp_snaplen;
	*realtime_ns = (int64_t)header->tp_sec * 1000000000 + header->tp_nsec;
	return (const uint8_t *)header + header->tp_mac;
}

void ring_release(struct ring *r)
{
	__atomic_store_n(&slot(r)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
	r->next = r->next + 1 == r->frames ? 0 : r->next + 1;
}

void ring_poll_overflow(struct ring *r)
{
	struct tpacket_stats stats;
	socklen_t len = sizeof stats;

	if (getsockopt(r->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &len) == 0)
		r->overflow += stats.tp_drops;
}

void ring_close(struct ring *r)
{
	if (r->memory != NULL)
		munmap(r->memory, (size_t)BLOCK_BYTES * (r->frames / r->per_block));
	if (r->fd > 0)
		close(r->fd);
	r->memory = NULL;
	r->fd = -1;
}
