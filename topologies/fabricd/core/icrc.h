/*
 * The invariant CRC of RoCEv2 (InfiniBand Architecture Specification, annex A17.3.3).
 *
 * It is the Ethernet CRC-32 over eight bytes of ones (in place of InfiniBand's local route
 * header) and the packet from the IP header on, in which every field that a router may change
 * reads as ones: type of service, time to live, IP header checksum, UDP checksum and the byte of
 * the BTH that holds FECN and BECN.  The four bytes stand in the packet least significant first.
 */
#ifndef STRAGGLER_ICRC_H
#define STRAGGLER_ICRC_H

#include <stdint.h>

#define ICRC_BYTES 4
#define ICRC_COVERED_HEADER_BYTES 40 /* IPv4 without options 20, UDP 8, BTH 12 */

/*
 * `packet` begins at an IPv4 header without options; `count` runs to the last byte before the
 * ICRC and is at least ICRC_COVERED_HEADER_BYTES.
 */
uint32_t icrc_compute(const uint8_t *packet, uint32_t count);

#endif
