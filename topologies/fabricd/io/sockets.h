/* The sockets of fabricd that are no receive rings, in the network namespace of the caller; a descriptor or -errno. */
#ifndef STRAGGLER_SOCKETS_H
#define STRAGGLER_SOCKETS_H

/*
 * A socket that only sends: protocol 0 receives nothing.  A bypass of the queueing discipline saves time, but
 * it also bypasses tcpdump, so a NIC, whose packets people want to see leave, does without.
 */
int socket_sender(int bypass);
/* A UDP socket on the RoCE port whose filter accepts nothing: works on every kernel and needs no firewall. */
int socket_sink(void);

#endif
