/* Laying out the telemetry block, writing its rings, and the histogram's arithmetic. */
#include "telemetry.h"

#include <assert.h>
#include <string.h>

static uint64_t align8(uint64_t bytes)
{
	return (bytes + 7) & ~7ull;
}

static uint64_t series_row_bytes(const struct telemetry_shape *shape)
{
	return align8(sizeof(int64_t) + sizeof(uint32_t) * (uint64_t)shape->ports *
		      (uint32_t)__builtin_popcount(shape->series_classes));
}

static void lay_out(struct telemetry_header *h, const struct telemetry_shape *shape)
{
	uint64_t at = align8(sizeof *h);

	memset(h, 0, sizeof *h);
	h->ports = shape->ports;
	h->switches = shape->switches;
	h->nics = shape->nics;
	h->classes = shape->classes;
	h->series_classes = shape->series_classes;
	h->flows = shape->flows;
	h->series_rows = shape->series_rows;
	h->trace_records = shape->trace_records;
	h->global_offset = at;
	at += align8(sizeof(struct telemetry_global));
	h->port_offset = at;
	at += sizeof(struct telemetry_port) * (uint64_t)shape->ports;
	h->switch_offset = at;
	at += sizeof(struct telemetry_switch) * (uint64_t)shape->switches;
	h->slot_offset = at;
	at += sizeof(struct telemetry_slot) * (uint64_t)shape->switches * SLOTS_PER_SWITCH;
	h->flow_offset = at;
	at += sizeof(struct telemetry_flow) * (uint64_t)shape->flows;
	h->nic_offset = at;
	at += sizeof(struct telemetry_nic) * (uint64_t)shape->nics;
	h->series_offset = at;
	at += series_row_bytes(shape) * shape->series_rows;
	h->trace_offset = at;
	at += sizeof(struct trace_record) * (uint64_t)shape->trace_records;
	h->bytes = at;
}

size_t telemetry_bytes(const struct telemetry_shape *shape)
{
	struct telemetry_header h;

	lay_out(&h, shape);
	return h.bytes;
}

void telemetry_init(struct telemetry *t, void *memory, const struct telemetry_shape *shape)
{
	uint8_t *base = memory;
	struct telemetry_header *h = memory;
	uint32_t i;

	lay_out(h, shape);
	t->header = h;
	t->global = (struct telemetry_global *)(base + h->global_offset);
	t->port = (struct telemetry_port *)(base + h->port_offset);
	t->sw = (struct telemetry_switch *)(base + h->switch_offset);
	t->slot = (struct telemetry_slot *)(base + h->slot_offset);
	t->flow = (struct telemetry_flow *)(base + h->flow_offset);
	t->nic = (struct telemetry_nic *)(base + h->nic_offset);
	t->series = base + h->series_offset;
	t->trace = (struct trace_record *)(base + h->trace_offset);
	t->series_row_bytes = series_row_bytes(shape);
	for (i = 0; i < shape->switches * SLOTS_PER_SWITCH; i++) {
		t->slot[i].flow = UINT32_MAX;
		t->slot[i].out_port = UINT32_MAX;
	}
	h->version = TELEMETRY_VERSION;
	/* The magic number comes last: a reader that sees it sees a whole header. */
	__atomic_store_n(&h->magic, TELEMETRY_MAGIC, __ATOMIC_RELEASE);
}

void telemetry_trace(struct telemetry *t, const struct trace_record *record)
{
	uint64_t head = t->global->trace_head;

	t->trace[head % t->header->trace_records] = *record;
	__atomic_store_n(&t->global->trace_head, head + 1, __ATOMIC_RELEASE);
}

uint32_t histogram_bucket(uint64_t value)
{
	uint32_t octave, bucket;

	if (value < 16)
		return (uint32_t)value;
	octave = 63u - (uint32_t)__builtin_clzll(value);
	bucket = (octave - 2) * 8 + (uint32_t)(value >> (octave - 3)) - 8;
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

uint64_t histogram_lower_bound(uint32_t bucket)
{
	uint32_t octave;

	assert(bucket < HISTOGRAM_BUCKETS);
	if (bucket < 16)
		return bucket;
	octave = bucket / 8 + 2;
	return (uint64_t)(8 + bucket % 8) << (octave - 3);
}

void histogram_add(struct telemetry_histogram *h, uint64_t value)
{
	h->bucket[histogram_bucket(value)]++;
}
