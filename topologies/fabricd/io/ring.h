/* A memory-mapped AF_PACKET receive ring on one interface (packet_mmap, TPACKET_V2). Not part of the Python binding. */
#ifndef STRAGGLER_RING_H
#define STRAGGLER_RING_H

#include <stdint.h>

struct ring {
	int fd;
	uint8_t *memory;
	uint32_t frames, per_block, stride, next;
	int ifindex;
	uint64_t overflow;  /* frames the kernel had no room for, as of ring_poll_overflow() */
};

/* With roce_only the kernel passes nothing but UDP port 4791. Returns 0 or a negative errno. */
int ring_open(struct ring *r, const char *interface, uint32_t frames, uint32_t frame_bytes, int roce_only);
/* The next received frame and its time of arrival (CLOCK_REALTIME), or NULL. It stays valid until ring_release(). */
const uint8_t *ring_peek(const struct ring *r, uint32_t *len, int64_t *realtime_ns);
void ring_release(struct ring *r);
void ring_poll_overflow(struct ring *r);
void ring_close(struct ring *r);

#endif
