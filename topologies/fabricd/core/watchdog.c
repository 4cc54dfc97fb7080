/*
 * The PFC watchdog, as SONiC has it: every poll it looks at each lossless egress queue of each switch; one that
 * was paused with frames waiting and sent nothing for `detect` is in a storm.  Until, from then on, no pause has come
 * for `restore`, its frames are dropped (those that wait and those that come), or sent in spite of pauses.
 */
#include "fabric_internal.h"

int watchdog_drops(const struct fabric *f, const struct port *p, uint32_t traffic_class)
{
	return (p->watchdog_classes >> traffic_class & 1) &&
	       f->sw[p->config.node].config.watchdog_action == WATCHDOG_DROP;
}

static void record(struct fabric *f, const struct port *p, uint32_t c, int64_t lasted_ns)
{
	uint32_t port = (uint32_t)(p - f->port);
	struct trace_record storm = {
		.t_ns = f->now_ns, .wait_ns = lasted_ns < 0 ? 0 : lasted_ns, .flow = NONE, .psn = lasted_ns < 0,
		.bytes = (uint32_t)f->telemetry.port[port].queue[c].depth_bytes,
		.arg = f->sw[p->config.node].config.watchdog_action, .port = (uint16_t)port, .kind = TRACE_WATCHDOG,
		.reason = (uint8_t)c,
	};

	telemetry_trace(&f->telemetry, &storm);
}

static void begin_storm(struct fabric *f, struct port *p, uint32_t c)
{
	uint32_t port = (uint32_t)(p - f->port);

	p->watchdog_classes |= (uint8_t)(1u << c);
	p->egress[c].storm_ns = f->now_ns;
	priority_group(f, p, c)->wd_deadlock_detected++;
	record(f, p, c, -1);
	if (watchdog_drops(f, p, c))
		tm_flush(f, port, c, DROP_WATCHDOG, f->now_ns);
	tm_wake(f, port, f->now_ns);
}

static void end_storm(struct fabric *f, struct port *p, uint32_t c)
{
	p->watchdog_classes &= (uint8_t)~(1u << c);
	record(f, p, c, f->now_ns - p->egress[c].stuck_since_ns);
	p->egress[c].stuck_since_ns = 0;
}

static void look(struct fabric *f, struct port *p, uint32_t c)
{
	const struct switch_config *config = &f->sw[p->config.node].config;
	struct egress *out = &p->egress[c];
	uint64_t sent = f->telemetry.port[p - f->port].queue[c].sent_frames;
	int64_t quiet_since_ns = out->last_xoff_ns > out->storm_ns ? out->last_xoff_ns : out->storm_ns;
	int paused = p->paused_classes >> c & 1;

	if (p->watchdog_classes >> c & 1) {
		if (!paused && f->now_ns - quiet_since_ns >= config->watchdog_restore_ns)
			end_storm(f, p, c);
	} else if (!paused || p->queue[c].head == NONE || sent != out->sent_at_poll) {
		out->stuck_since_ns = 0;
	} else if (out->stuck_since_ns == 0) {
		out->stuck_since_ns = f->now_ns;
	} else if (f->now_ns - out->stuck_since_ns >= config->watchdog_detect_ns) {
		begin_storm(f, p, c);
	}
	out->sent_at_poll = sent;
}

void watchdog_poll(struct fabric *f)
{
	uint32_t port, c;

	for (port = 0; port < f->config.ports; port++) {
		struct port *p = &f->port[port];

		if (p->config.kind != DEVICE_SWITCH || f->sw[p->config.node].config.watchdog_action == 0)
			continue;
		for (c = 0; c < MAX_CLASSES; c++)
			if (p->config.lossless_classes >> c & 1)
				look(f, p, c);
	}
}
