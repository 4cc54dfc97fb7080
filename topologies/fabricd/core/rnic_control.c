/*
 * The slow path: protection domains, memory regions, completion queues, queue pairs.
 *
 * Arguments are numbers from another process: each one is checked before it is narrowed.
 */
#include "rnic_internal.h"

#include <errno.h>
#include <string.h>

#define EPHEMERAL_PORTS 0xc000u

static int in_range(int64_t value, int64_t low, int64_t high)
{
	return value >= low && value <= high;
}

static uint64_t page_round(uint64_t bytes)
{
	return (bytes + VERBS_PAGE_BYTES - 1) / VERBS_PAGE_BYTES * VERBS_PAGE_BYTES;
}

static int has_pd(const struct rnic *nic, int64_t pd)
{
	return in_range(pd, 0, RNIC_MAX_PDS - 1) && nic->pd_used[pd];
}

static int has_cq(const struct rnic *nic, int64_t cq)
{
	return in_range(cq, 0, VERBS_MAX_CQS - 1) && nic->cq[cq].used;
}

static struct rnic_mr *find_mr(struct rnic *nic, uint32_t key)
{
	uint32_t index = (key >> 8) - 1;

	return index < RNIC_MAX_MRS && nic->mr[index].used && nic->mr[index].key == key ? &nic->mr[index] : NULL;
}

uint8_t *rnic_resolve(struct rnic *nic, uint32_t pd, uint32_t key, uint64_t addr, uint64_t length, uint32_t access)
{
	const struct rnic_mr *mr = find_mr(nic, key);

	if (!mr || mr->pd != pd || (mr->access & access) != access)
		return NULL;
	uint64_t into = addr - nic->shared->arena_address - mr->offset; /* huge when addr lies before the region */
	if (into > mr->length || length > mr->length - into)
		return NULL;
	return nic->arena + mr->offset + into;
}

static int alloc_pd(struct rnic *nic, int64_t *result)
{
	for (int pd = 0; pd < RNIC_MAX_PDS; pd++)
		if (!nic->pd_used[pd]) {
			nic->pd_used[pd] = 1;
			result[0] = pd;
			return 0;
		}
	return -ENOSPC;
}

static int dealloc_pd(struct rnic *nic, int64_t pd)
{
	if (!has_pd(nic, pd))
		return -ENOENT;
	for (uint32_t i = 0; i < RNIC_MAX_MRS; i++)
		if (nic->mr[i].used && nic->mr[i].pd == pd)
			return -EBUSY;
	for (uint32_t i = 0; i < VERBS_MAX_QPS; i++)
		if (nic->qp[i].used && nic->qp[i].pd == pd)
			return -EBUSY;
	nic->pd_used[pd] = 0;
	return 0;
}

/* First fit: move behind every region that is in the way until none is. */
static int find_gap(const struct rnic *nic, uint64_t length, uint64_t *offset)
{
	uint64_t at = 0;
	int moved;

	do {
		moved = 0;
		for (uint32_t i = 0; i < RNIC_MAX_MRS; i++) {
			const struct rnic_mr *mr = &nic->mr[i];
			if (mr->used && mr->offset < at + length && at < mr->offset + page_round(mr->length)) {
				at = mr->offset + page_round(mr->length);
				moved = 1;
			}
		}
	} while (moved);
	*offset = at;
	return at + length <= nic->config.arena_bytes;
}

static int reg_mr(struct rnic *nic, const int64_t *arg, int64_t *result)
{
	uint32_t index = 0;
	uint64_t offset;

	if (!has_pd(nic, arg[0]))
		return -ENOENT;
	if (!in_range(arg[2], 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ) || arg[1] <= 0)
		return -EINVAL;
	if ((uint64_t)arg[1] > nic->config.arena_bytes || !find_gap(nic, page_round((uint64_t)arg[1]), &offset))
		return -ENOMEM;
	while (index < RNIC_MAX_MRS && nic->mr[index].used)
		index++;
	if (index == RNIC_MAX_MRS)
		return -ENOSPC;
	struct rnic_mr *mr = &nic->mr[index];
	mr->used = 1;
	mr->key = (index + 1) << 8 | ++mr->generation;
	mr->pd = (uint32_t)arg[0];
	mr->access = (uint32_t)arg[2];
	mr->offset = offset;
	mr->length = (uint64_t)arg[1];
	result[0] = result[1] = mr->key;
	result[2] = (int64_t)(nic->shared->arena_address + offset);
	result[3] = (int64_t)(nic->shared->arena_offset + offset);
	return 0;
}

static int dereg_mr(struct rnic *nic, int64_t key)
{
	struct rnic_mr *mr = in_range(key, 0, UINT32_MAX) ? find_mr(nic, (uint32_t)key) : NULL;

	if (!mr)
		return -ENOENT;
	mr->used = 0;
	return 0;
}

static int create_cq(struct rnic *nic, int64_t entries, int64_t *result)
{
	uint32_t depth = 1, index = 0;

	if (!in_range(entries, 1, VERBS_CQ_DEPTH))
		return -EINVAL;
	while (index < VERBS_MAX_CQS && nic->cq[index].used)
		index++;
	if (index == VERBS_MAX_CQS)
		return -ENOSPC;
	while (depth < entries)
		depth *= 2;
	struct rnic_cq *cq = &nic->cq[index];
	cq->used = 1;
	cq->depth = depth;
	cq->producer = 0;
	cq->ring->producer = cq->ring->consumer = cq->ring->armed = cq->ring->overrun = 0;
	cq->ring->depth = depth;
	result[0] = index;
	result[1] = depth;
	return 0;
}

static int destroy_cq(struct rnic *nic, int64_t cq)
{
	if (!has_cq(nic, cq))
		return -ENOENT;
	for (uint32_t i = 0; i < VERBS_MAX_QPS; i++)
		if (nic->qp[i].used && (nic->qp[i].send_cq == cq || nic->qp[i].recv_cq == cq))
			return -EBUSY;
	nic->cq[cq].used = 0;
	nic->cq[cq].ring->depth = 0;
	return 0;
}

/* Forget all work, as ibverbs does on the way to IBV_QPS_RESET; completions that were written stay. */
static void reset_qp(struct rnic *nic, struct rnic_qp *qp)
{
	uint64_t bit = 1ull << qp->slot;

	nic->ready &= ~bit;
	nic->replying &= ~bit;
	nic->timed &= ~bit;
	qp->done = qp->cursor = qp->fetched = qp->recv_consumer = 0;
	qp->expected = qp->msn = 0;
	qp->in_message = qp->gap_reported = qp->ack_due = qp->nak_due = 0;
	requester_start(qp, 0);
	congestion_reset(nic, qp);
	qp->ring->send_producer = qp->ring->recv_producer = qp->ring->send_consumer = qp->ring->recv_consumer = 0;
	rnic_set_state(qp, IBV_QPS_RESET);
}

static int create_qp(struct rnic *nic, const int64_t *arg, int64_t *result)
{
	uint32_t slot = 0;

	if (!has_pd(nic, arg[0]) || !has_cq(nic, arg[1]) || !has_cq(nic, arg[2]))
		return -ENOENT;
	while (slot < VERBS_MAX_QPS && nic->qp[slot].used)
		slot++;
	if (slot == VERBS_MAX_QPS)
		return -ENOSPC;
	struct rnic_qp *qp = &nic->qp[slot];
	qp->used = 1;
	/* A number comes back only after 2^17 others of its slot, so that late packets find nobody. */
	qp->qp_num = (RNIC_FIRST_QP + slot + VERBS_MAX_QPS * (qp->generation++ & 0x1ffff));
	qp->pd = (uint32_t)arg[0];
	qp->send_cq = (uint32_t)arg[1];
	qp->recv_cq = (uint32_t)arg[2];
	qp->signal_all = arg[3] != 0;
	qp->congestion_control = 0;
	qp->ring->qp_num = qp->qp_num;
	reset_qp(nic, qp);
	result[0] = qp->qp_num;
	result[1] = slot;
	return 0;
}

static struct rnic_qp *qp_argument(struct rnic *nic, int64_t qp_num)
{
	return in_range(qp_num, 0, PSN_MASK) ? rnic_find_qp(nic, (uint32_t)qp_num) : NULL;
}

static int to_init(struct rnic_qp *qp, const int64_t *arg)
{
	if (!in_range(arg[2], 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ))
		return -EINVAL;
	qp->access = (uint32_t)arg[2];
	rnic_set_state(qp, IBV_QPS_INIT);
	return 0;
}

static int to_rtr(struct rnic *nic, struct rnic_qp *qp, const int64_t *arg)
{
	int64_t mtu = arg[5] ? arg[5] : nic->config.mtu_bytes;

	if (!in_range(arg[2], 0, UINT32_MAX) || !in_range(arg[3], 0, PSN_MASK) || !in_range(arg[4], 0, PSN_MASK) ||
	    !in_range(mtu, RNIC_MIN_MTU, nic->config.mtu_bytes) || mtu % 4 || !in_range(arg[6], 0, 31) ||
	    !in_range(arg[7], 0, 65535) || !in_range(arg[8], 0, 63))
		return -EINVAL;
	qp->remote_ip = (uint32_t)arg[2];
	qp->remote_qp = (uint32_t)arg[3];
	qp->expected = (uint64_t)arg[4];
	qp->mtu = (uint32_t)mtu;
	qp->rnr_code = (uint8_t)arg[6];
	/* Fibonacci hashing spreads neighbouring queue pairs over the ephemeral ports. */
	qp->src_port = arg[7] ? (uint16_t)arg[7] : (uint16_t)(EPHEMERAL_PORTS | qp->qp_num * 2654435769u >> 18);
	qp->dscp = (uint8_t)(arg[8] ? arg[8] : nic->config.dscp);
	packet_prepare(nic, qp);
	congestion_classify(nic, qp);
	rnic_set_state(qp, IBV_QPS_RTR);
	return 0;
}

static int to_rts(struct rnic *nic, struct rnic_qp *qp, const int64_t *arg)
{
	if (!in_range(arg[2], 0, PSN_MASK) || !in_range(arg[3], 0, MAX_TIMEOUT_NS) || !in_range(arg[4], 0, 7) ||
	    !in_range(arg[5], 0, 7) || arg[6] < 0 || !in_range(arg[7], 0, RNIC_MAX_UNACKED))
		return -EINVAL;
	qp->timeout_ns = arg[3];
	qp->retry_count = (uint32_t)arg[4];
	qp->rnr_retry = (uint32_t)arg[5];
	qp->window_bytes = (uint64_t)arg[6];
	qp->ack_every = arg[7] ? (uint32_t)arg[7] : RNIC_ACK_EVERY;
	requester_start(qp, (uint64_t)arg[2]);
	rnic_set_state(qp, IBV_QPS_RTS);
	nic->ready |= 1ull << qp->slot;
	return 0;
}

static int modify_qp(struct rnic *nic, const int64_t *arg)
{
	struct rnic_qp *qp = qp_argument(nic, arg[0]);

	if (!qp)
		return -ENOENT;
	if (arg[1] == IBV_QPS_RESET) {
		reset_qp(nic, qp);
		return 0;
	}
	if (arg[1] == IBV_QPS_ERR) {
		rnic_fail_qp(nic, qp, IBV_WC_WR_FLUSH_ERR);
		return 0;
	}
	if (arg[1] == IBV_QPS_INIT && qp->state == IBV_QPS_RESET)
		return to_init(qp, arg);
	if (arg[1] == IBV_QPS_RTR && qp->state == IBV_QPS_INIT)
		return to_rtr(nic, qp, arg);
	if (arg[1] == IBV_QPS_RTS && qp->state == IBV_QPS_RTR)
		return to_rts(nic, qp, arg);
	return -EINVAL;
}

static int query_qp(struct rnic *nic, int64_t qp_num, int64_t *result)
{
	struct rnic_qp *qp = qp_argument(nic, qp_num);

	if (!qp)
		return -ENOENT;
	result[0] = qp->state;
	result[1] = (int64_t)(qp->send_psn & PSN_MASK);
	result[2] = (int64_t)(qp->expected & PSN_MASK);
	result[3] = (int64_t)(qp->send_byte - qp->una_byte);
	congestion_query(nic, qp, result + 4);
	return 0;
}

static int set_dcqcn(struct rnic *nic, const int64_t *arg)
{
	struct rnic_qp *qp = qp_argument(nic, arg[0]);

	return qp ? congestion_set(nic, qp, arg) : -ENOENT;
}

static int destroy_qp(struct rnic *nic, int64_t qp_num)
{
	struct rnic_qp *qp = qp_argument(nic, qp_num);

	if (!qp)
		return -ENOENT;
	reset_qp(nic, qp);
	qp->used = 0;
	return 0;
}

void rnic_control(struct rnic *nic, struct control_request *request)
{
	const int64_t *arg = request->arg;
	int64_t *result = request->result;

	memset(result, 0, sizeof request->result);
	switch (request->op) {
	case RNIC_ALLOC_PD:
		request->status = alloc_pd(nic, result);
		break;
	case RNIC_DEALLOC_PD:
		request->status = dealloc_pd(nic, arg[0]);
		break;
	case RNIC_REG_MR:
		request->status = reg_mr(nic, arg, result);
		break;
	case RNIC_DEREG_MR:
		request->status = dereg_mr(nic, arg[0]);
		break;
	case RNIC_CREATE_CQ:
		request->status = create_cq(nic, arg[0], result);
		break;
	case RNIC_DESTROY_CQ:
		request->status = destroy_cq(nic, arg[0]);
		break;
	case RNIC_CREATE_QP:
		request->status = create_qp(nic, arg, result);
		break;
	case RNIC_MODIFY_QP:
		request->status = modify_qp(nic, arg);
		break;
	case RNIC_QUERY_QP:
		request->status = query_qp(nic, arg[0], result);
		break;
	case RNIC_DESTROY_QP:
		request->status = destroy_qp(nic, arg[0]);
		break;
	case RNIC_SET_DCQCN:
		request->status = set_dcqcn(nic, arg);
		break;
	default:
		request->status = -EINVAL;
	}
}
