/*
 * fabricd: the system calls around the core.
 *
 * One real-time thread runs fabricd_run(): at every tick it empties the receive rings of all taps and
 * NICs into the core, lets the core advance, and sends what is due with one sendmmsg().  A tick over
 * memory-mapped rings costs half of what a wake-up and a receive call per packet would.
 *
 * Everything else (configuration, verbs' slow path) happens in another thread, which never touches the
 * core: it posts a request with fabricd_call() and the loop executes it between two ticks.
 */
#ifndef STRAGGLER_FABRICD_H
#define STRAGGLER_FABRICD_H

#include <stdint.h>

#include "../core/control.h"
#include "../core/fabric.h"
#include "../core/rnic.h"

struct fabricd_config {
	uint32_t ports, nics;
	uint32_t frame_bytes;
	uint32_t ring_frames;   /* frames that each receive ring holds */
	int64_t tick_ns;
	int32_t priority;       /* of SCHED_RR */
};

enum fabricd_scheduler { SCHEDULER_RR = 1, SCHEDULER_NICE = 2, SCHEDULER_OTHER = 3 };

struct fabricd; /* opaque */

/* NULL, with errno set, if there is no memory. */
struct fabricd *fabricd_new(struct fabric *fabric, const struct fabricd_config *config);
/*
 * Attaching and detaching wait for the kernel (an RCU grace period a socket, 20 ms); several threads may do it at the
 * same time for different ports and NICs, and then wait together.
 * These return 0 or a negative errno. `netns` is a path such as /proc/PID/ns/net. */
int fabricd_attach_port(struct fabricd *d, uint32_t port, const char *tap);
int fabricd_attach_nic(struct fabricd *d, uint32_t nic, uint32_t port, struct rnic *rnic, const char *netns,
		       const char *interface);
int fabricd_set_eventfd(struct fabricd *d, uint32_t nic, int fd);
/* Returns when fabricd_stop() was called. Run it in a thread of its own. */
void fabricd_run(struct fabricd *d);
void fabricd_stop(struct fabricd *d);
/* Has the loop execute the request and waits for it; -ETIMEDOUT if the loop does not run. One caller at a time. */
int fabricd_call(struct fabricd *d, struct control_request *request);
int fabricd_scheduler(const struct fabricd *d); /* fabricd_scheduler; 0 before the loop runs */
/* Closes the sockets of port `ring`, or of NIC `ring - ports`; only after the loop has ended. */
void fabricd_detach(struct fabricd *d, uint32_t ring);
void fabricd_free(struct fabricd *d);

#endif
