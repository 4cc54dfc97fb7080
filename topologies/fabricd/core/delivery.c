/* The far end of a link: what is lost on it, what there is no room for, and handing over the rest. */
#include "fabric_internal.h"

void fabric_hand_over(struct fabric *f, uint32_t port, uint32_t index)
{
	const struct port *to = &f->port[port];
	struct telemetry *t = &f->telemetry;
	struct packet *packet = &f->packet[index];
	uint8_t *frame = packet_frame(f, index);

	t->port[to->config.peer].delivered_frames++;
	histogram_add(&t->global->lateness_us, (uint64_t)(f->now_ns - packet->due_ns) / 1000);
	if (to->config.kind == DEVICE_SWITCH) {
		struct frame_metadata metadata = {
			.ingress_port = (uint8_t)to->config.number, .time_us = (uint64_t)f->now_ns / 1000,
		};

		flow_enters_switch(f, to->config.node, packet->flow, packet->digest, packet->len, &metadata);
		frame_write_metadata(frame, &metadata);
		t->sw[to->config.node].in_frames++;
	} else {
		frame_write_macs(frame, to->config.mac, f->gateway_mac);
		if (packet->flow != NONE) {
			t->flow[packet->flow].delivered_frames++;
			t->flow[packet->flow].delivered_bytes += packet->len;
		}
	}
	f->out[f->outs++] = (struct fabric_out){
		.port = port, .len = packet->len, .frame = frame, .due_ns = packet->due_ns, .packet = index,
	};
}

/* MAC control and credits end at the port; what is a frame is shown to the device as well. */
static void deliver_control(struct fabric *f, uint32_t from_port, uint32_t index)
{
	uint32_t port = f->port[from_port].config.peer;
	struct packet *packet = &f->packet[index];

	if (packet->kind == PACKET_MAC_CONTROL && f->telemetry.port[from_port].up) {
		pfc_arrived(f, port, index, packet->due_ns);
		f->out[f->outs++] = (struct fabric_out){
			.port = port, .len = packet->len, .frame = packet_frame(f, index), .due_ns = packet->due_ns, .packet = index,
		};
		return;
	}
	if (f->telemetry.port[from_port].up)
		credits_arrived(f, port, index, packet->due_ns);
	packet_free(f, index);
}

/* Lost on the link: the room that credits have set apart for it is free again. */
static void lose(struct fabric *f, uint32_t from_port, uint32_t index, enum drop_reason reason)
{
	struct packet *packet = &f->packet[index];

	fabric_drop(f, from_port, reason, packet);
	if (f->config.flow_control == FLOW_CONTROL_CREDITS && is_lossless(f, &f->port[from_port], packet->traffic_class))
		credits_free(f, f->port[from_port].config.peer, packet->traffic_class, credit_units(packet->len), packet->due_ns);
	packet_free(f, index);
}

/* A lossless frame into a switch is charged to the port where it comes in, or there is no room for it. */
static enum drop_reason charge(struct fabric *f, uint32_t port, const struct packet *packet)
{
	enum drop_reason reason = buffer_charge(f, port, packet->traffic_class, packet->len, packet->due_ns);

	if (reason == DROP_NONE)
		buffer_goes_in(f, port, packet->traffic_class, packet->len);
	return reason;
}

/* The frame has reached the far end of the link that begins at from_port. */
void fabric_deliver(struct fabric *f, uint32_t from_port, uint32_t index)
{
	uint32_t port = f->port[from_port].config.peer;
	struct port *to = &f->port[port];
	struct packet *packet = &f->packet[index];
	int lossless;

	if (packet->kind != PACKET_DATA) {
		deliver_control(f, from_port, index);
		return;
	}
	if (!f->telemetry.port[from_port].up || (f->port[from_port].has_faults && faults_lose(f, from_port, packet))) {
		lose(f, from_port, index, f->telemetry.port[from_port].up ? DROP_BIT_ERROR : DROP_LINK_DOWN);
		return;
	}
	lossless = is_lossless(f, to, packet->traffic_class);
	if (to->config.kind == DEVICE_HOST) {
		if (receiver_in_use(to)) {
			receiver_take(f, port, index);
			return;
		}
		if (lossless && f->config.flow_control == FLOW_CONTROL_CREDITS)
			credits_free(f, port, packet->traffic_class, credit_units(packet->len), packet->due_ns);
	} else if (lossless && charge(f, port, packet) != DROP_NONE) {
		fabric_drop(f, port, DROP_HEADROOM, packet);
		packet_free(f, index);
		return;
	}
	fabric_hand_over(f, port, index);
}
