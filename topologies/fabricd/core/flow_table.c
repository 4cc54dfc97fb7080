/* Flows by their five-tuple; what each switch keeps of each: its slot, its flowlet, the port it left by. */
#include <string.h>

#include "fabric_internal.h"

uint32_t flow_lookup(struct fabric *f, const struct flow_key *key, uint64_t digest)
{
	struct telemetry_global *g = f->telemetry.global;
	uint32_t buckets = f->config.flows * 2, i = (uint32_t)digest & (buckets - 1);
	struct telemetry_flow *flow;
	uint32_t index, sw;

	for (; f->flow_index[i] != NONE; i = (i + 1) & (buckets - 1)) {
		index = f->flow_index[i];
		flow = &f->telemetry.flow[index];
		if (f->flow_digest[index] == digest && flow->src_ip == key->src_ip && flow->dst_ip == key->dst_ip &&
		    flow->src_port == key->src_port && flow->dst_port == key->dst_port && flow->protocol == key->protocol)
			return index;
	}
	if (g->flows_used == f->config.flows) {
		g->flows_overflow++;
		return NONE;
	}
	index = (uint32_t)g->flows_used;
	flow = &f->telemetry.flow[index];
	flow->src_ip = key->src_ip;
	flow->dst_ip = key->dst_ip;
	flow->src_port = key->src_port;
	flow->dst_port = key->dst_port;
	flow->protocol = key->protocol;
	flow->first_seen_ns = f->now_ns;
	f->flow_digest[index] = digest;
	f->flow_index[i] = index;
	for (sw = 0; sw < f->config.switches; sw++) {
		struct flow_at_switch *at = &f->at_switch[(size_t)index * f->config.switches + sw];

		at->out_port = NONE;
		at->slot = SLOTS_PER_SWITCH;
	}
	__atomic_store_n(&g->flows_used, g->flows_used + 1, __ATOMIC_RELEASE);
	return index;
}

/*
 * The slot that was idle longest goes to the new flow.  With more than 256 flows alive at one
 * switch some of them therefore lose theirs and are given another at their next frame, as in a
 * hardware table that is too small; the ARS flow limit of a switch is of this order (SAI: 512).
 */
static uint16_t claim_slot(struct fabric *f, uint32_t sw, uint32_t flow)
{
	struct telemetry_slot *slots = &f->telemetry.slot[(size_t)sw * SLOTS_PER_SWITCH];
	uint32_t i, best = 0;

	for (i = 0; i < SLOTS_PER_SWITCH; i++) {
		if (slots[i].flow == NONE) {
			best = i;
			break;
		}
		if (slots[i].last_seen_ns < slots[best].last_seen_ns)
			best = i;
	}
	if (slots[best].flow != NONE)
		f->at_switch[(size_t)slots[best].flow * f->config.switches + sw].slot = SLOTS_PER_SWITCH;
	memset(&slots[best], 0, sizeof slots[best]);
	slots[best].flow = flow;
	slots[best].out_port = NONE;
	return (uint16_t)best;
}

void flow_enters_switch(struct fabric *f, uint32_t sw, uint32_t flow, uint64_t digest, uint32_t len, struct frame_metadata *m)
{
	struct switch_state *s = &f->sw[sw];
	struct flow_at_switch *at;
	struct telemetry_slot *slot;

	m->flow_hash = flow_hash_of_digest(digest, s->config.hash_seed, 0);
	m->flowlet_hash = m->flow_hash;
	m->spray = s->spray++;
	m->slot = m->flow_hash;
	if (flow == NONE)
		return;
	at = &f->at_switch[(size_t)flow * f->config.switches + sw];
	if (s->config.flowlet_gap_ns > 0 && at->last_seen_ns != 0 &&
	    f->now_ns - at->last_seen_ns > s->config.flowlet_gap_ns) {
		at->flowlet++;
		f->telemetry.sw[sw].flowlets++;
	}
	at->last_seen_ns = f->now_ns;
	m->flowlet_hash = flow_hash_of_digest(digest, s->config.hash_seed, at->flowlet);
	if (at->slot == SLOTS_PER_SWITCH)
		at->slot = claim_slot(f, sw, flow);
	m->slot = (uint8_t)at->slot;
	slot = &f->telemetry.slot[(size_t)sw * SLOTS_PER_SWITCH + at->slot];
	slot->last_seen_ns = f->now_ns;
	slot->frames++;
	slot->bytes += len;
}

void flow_leaves_switch(struct fabric *f, uint32_t sw, uint32_t flow, uint32_t psn, uint32_t port)
{
	struct flow_at_switch *at;

	if (flow == NONE)
		return;
	at = &f->at_switch[(size_t)flow * f->config.switches + sw];
	if (at->out_port == port)
		return;
	if (at->out_port != NONE) {
		struct trace_record moved = {
			.t_ns = f->now_ns, .flow = flow, .psn = psn, .arg = at->out_port, .port = (uint16_t)port, .kind = TRACE_PATH,
		};

		telemetry_trace(&f->telemetry, &moved);
		f->telemetry.flow[flow].path_changes++;
		f->telemetry.sw[sw].path_changes++;
	}
	at->out_port = port;
	if (at->slot != SLOTS_PER_SWITCH)
		f->telemetry.slot[(size_t)sw * SLOTS_PER_SWITCH + at->slot].out_port = port;
}
