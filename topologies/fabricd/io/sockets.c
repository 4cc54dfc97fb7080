/* See sockets.h. */
#include "sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../core/rnic.h"

#ifndef PACKET_QDISC_BYPASS
#define PACKET_QDISC_BYPASS 20
#endif

enum { SEND_BUFFER_BYTES = 8 << 20 };

int socket_sender(int bypass)
{
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), bytes = SEND_BUFFER_BYTES;

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &bypass, sizeof bypass) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) < 0) {
		int error = errno;

		close(fd);
		return -error;
	}
	return fd;
}

int socket_sink(void)
{
	struct sock_filter nothing = { 0x06, 0, 0, 0 };
	struct sock_fprog program = { .len = 1, .filter = &nothing };
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(RNIC_UDP_PORT) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) < 0 ||
	    bind(fd, (struct sockaddr *)&address, sizeof address) < 0) {
		int error = errno;

		close(fd);
		return -error;
	}
	return fd;
}
