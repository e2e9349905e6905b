/* Requests and completions. A request is executed in the call that posts it. */
#include "stand_in.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* What a completion with an error has in the fields that mean nothing there. */
enum { GARBAGE = 0x5a };

static void complete(struct ibv_cq *cq, struct ibv_wc completion, bool is_solicited) {
    struct completion_queue *queue = (struct completion_queue *)cq;
    if (queue->count == (unsigned)cq->cqe) {
        violation("a completion queue of %d is overrun", cq->cqe);
        return;
    }
    if (completion.status) {
        struct ibv_wc known = completion;
        memset(&completion, GARBAGE, sizeof completion);
        completion.wr_id = known.wr_id;
        completion.status = known.status;
        completion.qp_num = known.qp_num;
        completion.vendor_err = 0x81;
    }
    queue->entries[(queue->first + queue->count++) % (unsigned)cq->cqe] = completion;
    if (!queue->is_armed || (queue->is_armed_for_solicited && !is_solicited && !completion.status))
        return;
    queue->is_armed = false;
    void **content = calloc(1, sizeof *content);
    *content = cq;
    put_letter(&((struct completion_channel *)cq->channel)->events, content);
}

static int ibv_poll_cq_(struct ibv_cq *cq, int most, struct ibv_wc *into) {
    if (injected("ibv_poll_cq"))
        return -1;
    struct completion_queue *queue = (struct completion_queue *)cq;
    expect_alive(&queue->life, "ibv_poll_cq");
    int taken = 0;
    for (; taken < most && queue->count; taken++) {
        into[taken] = queue->entries[queue->first];
        queue->first = (queue->first + 1) % (unsigned)cq->cqe;
        queue->count--;
    }
    return taken;
}

static int ibv_req_notify_cq_(struct ibv_cq *cq, int solicited_only) {
    int error = injected("ibv_req_notify_cq");
    if (error)
        return error;
    struct completion_queue *queue = (struct completion_queue *)cq;
    expect_alive(&queue->life, "ibv_req_notify_cq");
    if (!cq->channel)
        return EINVAL;
    queue->is_armed_for_solicited = solicited_only && !(queue->is_armed && !queue->is_armed_for_solicited);
    queue->is_armed = true;
    return 0;
}

static void fail(struct queue_pair *queue_pair) {
    if (queue_pair->qp.state == IBV_QPS_ERR)
        return;
    queue_pair->qp.state = queue_pair->attributes.qp_state = IBV_QPS_ERR;
    flush(queue_pair);
}

void flush(struct queue_pair *queue_pair) {
    struct ibv_qp *qp = &queue_pair->qp;
    struct receive receive;
    while (take_receive(&queue_pair->receives, &receive))
        complete(qp->recv_cq, (struct ibv_wc){.wr_id = receive.wr_id, .status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->qp_num}, false);
    if (qp->srq)
        raise_event(qp->context, IBV_EVENT_QP_LAST_WQE_REACHED, qp);
}

/* The memory of a range, if the key is there and allows it. */
static char *reach(uint32_t key, uint64_t address, uint64_t length, unsigned access) {
    struct keyed *keyed = find_key(key);
    if (!keyed || (access & ~keyed->access) || address < keyed->address || length > keyed->length ||
        address - keyed->address > keyed->length - length)
        return NULL;
    return (char *)(uintptr_t)address;
}

/* Copies between the entries of a request and plain memory. Returns how much, or -1. */
static long copy(const struct ibv_sge *entry, int entries, char *plain, size_t length, bool into_entries) {
    size_t done = 0;
    for (int n = 0; n < entries && done < length; n++) {
        size_t part = entry[n].length < length - done ? entry[n].length : length - done;
        char *memory = reach(entry[n].lkey, entry[n].addr, part, into_entries ? IBV_ACCESS_LOCAL_WRITE : 0);
        if (!memory)
            return -1;
        memcpy(into_entries ? memory : plain + done, into_entries ? plain + done : memory, part);
        done += part;
    }
    return (long)done;
}

static size_t length_of(const struct ibv_send_wr *request) {
    size_t length = 0;
    for (int n = 0; n < request->num_sge; n++)
        length += request->sg_list[n].length;
    return length;
}

static void count_shared(struct ibv_srq *srq) {
    struct shared_receive_queue *queue = (struct shared_receive_queue *)srq;
    if (queue->receives.count >= queue->limit)
        return;
    queue->limit = 0;
    raise_event(srq->context, IBV_EVENT_SRQ_LIMIT_REACHED, srq);
}

/* Gives the peer a message in a receive of its. */
static enum ibv_wc_status deliver(struct queue_pair *peer, const struct ibv_send_wr *request, char *message,
                                  size_t length, enum ibv_wc_opcode opcode) {
    struct ibv_qp *qp = &peer->qp;
    struct receive receive;
    struct receives *receives =
        qp->srq ? &((struct shared_receive_queue *)qp->srq)->receives : &peer->receives;
    if (!take_receive(receives, &receive))
        return IBV_WC_RNR_RETRY_EXC_ERR;
    if (qp->srq)
        count_shared(qp->srq);
    if (!peer->has_said_that_data_came && !knows_that_it_is_connected(qp->qp_num)) {
        raise_event(qp->context, IBV_EVENT_COMM_EST, qp);
        raise_port_event(qp->context, IBV_EVENT_PORT_ERR, 2);
        raise_port_event(qp->context, IBV_EVENT_PORT_ACTIVE, 2);
        for (int n = 0; n < 3; n++)
            raise_port_event(qp->context, IBV_EVENT_GID_CHANGE, 1);
    }
    peer->has_said_that_data_came = true;
    struct ibv_wc completion = {
        .wr_id = receive.wr_id, .opcode = opcode, .byte_len = (uint32_t)length, .qp_num = qp->qp_num};
    bool has_immediate =
        request->opcode == IBV_WR_SEND_WITH_IMM || request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (has_immediate) {
        completion.wc_flags = IBV_WC_WITH_IMM;
        completion.imm_data = request->imm_data;
    }
    if (request->opcode == IBV_WR_SEND_WITH_INV) {
        completion.wc_flags = IBV_WC_WITH_INV;
        completion.invalidated_rkey = request->invalidate_rkey;
        struct keyed *keyed = find_key(request->invalidate_rkey);
        if (keyed)
            keyed->length = 0;
    }
    bool fits = opcode == IBV_WC_RECV_RDMA_WITH_IMM ||
                copy(receive.entry, receive.entries, message, length, true) == (long)length;
    if (!fits)
        completion.status = IBV_WC_LOC_LEN_ERR;
    complete(qp->recv_cq, completion, request->send_flags & IBV_SEND_SOLICITED);
    if (!fits)
        fail(peer);
    return fits ? IBV_WC_SUCCESS : IBV_WC_REM_INV_REQ_ERR;
}

static enum ibv_wc_status atomic(const struct ibv_send_wr *request, char *message, size_t length) {
    char *target = reach(request->wr.atomic.rkey, request->wr.atomic.remote_addr, 8, IBV_ACCESS_REMOTE_ATOMIC);
    uint64_t old, new;
    if (!target || length != 8)
        return IBV_WC_REM_ACCESS_ERR;
    memcpy(&old, target, 8);
    if (request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
        new = old + request->wr.atomic.compare_add;
    else
        new = old == request->wr.atomic.compare_add ? request->wr.atomic.swap : old;
    memcpy(target, &new, 8);
    memcpy(message, &old, 8);
    return copy(request->sg_list, request->num_sge, message, 8, true) == 8 ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
}

static enum ibv_wc_status one_sided(struct queue_pair *peer, const struct ibv_send_wr *request, char *message,
                                    size_t length) {
    bool reads = request->opcode == IBV_WR_RDMA_READ;
    unsigned access = reads ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    char *place = reach(request->wr.rdma.rkey, request->wr.rdma.remote_addr, length, access);
    if (length && !place)
        return IBV_WC_REM_ACCESS_ERR;
    if (reads && copy(request->sg_list, request->num_sge, place, length, true) < 0)
        return IBV_WC_LOC_PROT_ERR;
    if (!reads && length)
        memcpy(place, message, length);
    if (request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        return deliver(peer, request, message, length, IBV_WC_RECV_RDMA_WITH_IMM);
    return IBV_WC_SUCCESS;
}

static enum ibv_wc_status bind_window(const struct ibv_send_wr *request) {
    struct keyed *region = find_key(request->bind_mw.bind_info.mr->lkey);
    struct keyed *window = (struct keyed *)request->bind_mw.mw;
    if (!region || !window->life.is_alive || window->region || !(region->access & IBV_ACCESS_MW_BIND))
        return IBV_WC_MW_BIND_ERR;
    window->key = window->mw.rkey = request->bind_mw.rkey;
    window->region = region;
    region->users.count++;
    window->address = request->bind_mw.bind_info.addr;
    window->length = request->bind_mw.bind_info.length;
    window->access = request->bind_mw.bind_info.mw_access_flags;
    return IBV_WC_SUCCESS;
}

static enum ibv_wc_status invalidate(uint32_t key) {
    struct keyed *keyed = find_key(key);
    if (!keyed)
        return IBV_WC_LOC_QP_OP_ERR;
    if (keyed->region)
        keyed->region->users.count--;
    keyed->region = NULL;
    keyed->length = 0;
    return IBV_WC_SUCCESS;
}

static enum ibv_wc_status execute(struct queue_pair *own, const struct ibv_send_wr *request,
                                  enum ibv_wc_opcode *opcode) {
    size_t length = length_of(request);
    char *message = malloc(length + 8);
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    struct queue_pair *peer = find_queue_pair(own->attributes.dest_qp_num);
    bool gathers = request->opcode != IBV_WR_RDMA_READ;
    if (peer && peer->qp.state != IBV_QPS_RTR && peer->qp.state != IBV_QPS_RTS)
        peer = NULL;
    if (gathers && copy(request->sg_list, request->num_sge, message, length, false) < 0)
        status = IBV_WC_LOC_PROT_ERR;
    else if (request->opcode == IBV_WR_BIND_MW)
        *opcode = IBV_WC_BIND_MW, status = bind_window(request);
    else if (request->opcode == IBV_WR_LOCAL_INV)
        *opcode = IBV_WC_LOCAL_INV, status = invalidate(request->invalidate_rkey);
    else if (!peer)
        status = IBV_WC_RETRY_EXC_ERR;
    else switch (request->opcode) {
        case IBV_WR_SEND:
        case IBV_WR_SEND_WITH_IMM:
        case IBV_WR_SEND_WITH_INV:
            *opcode = IBV_WC_SEND;
            status = deliver(peer, request, message, length, IBV_WC_RECV);
            break;
        case IBV_WR_RDMA_READ:
            *opcode = IBV_WC_RDMA_READ;
            status = one_sided(peer, request, message, length);
            break;
        case IBV_WR_RDMA_WRITE:
        case IBV_WR_RDMA_WRITE_WITH_IMM:
            *opcode = IBV_WC_RDMA_WRITE;
            status = one_sided(peer, request, message, length);
            break;
        case IBV_WR_ATOMIC_CMP_AND_SWP:
        case IBV_WR_ATOMIC_FETCH_AND_ADD:
            *opcode = request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD;
            status = atomic(request, message, length);
            break;
        default:
            status = IBV_WC_LOC_QP_OP_ERR;
        }
    free(message);
    return status;
}

static int ibv_post_send_(struct ibv_qp *qp, struct ibv_send_wr *request, struct ibv_send_wr **bad) {
    struct queue_pair *own = (struct queue_pair *)qp;
    expect_alive(&own->life, "ibv_post_send");
    for (; request; request = request->next) {
        int error = injected("ibv_post_send");
        if (!error && qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR && qp->state != IBV_QPS_SQD)
            error = EINVAL;
        if (error) {
            *bad = request;
            return error;
        }
        struct ibv_wc completion = {.wr_id = request->wr_id, .qp_num = qp->qp_num};
        bool is_over = qp->state == IBV_QPS_ERR;
        completion.status = is_over ? IBV_WC_WR_FLUSH_ERR : execute(own, request, &completion.opcode);
        if (completion.status || own->signals_all || request->send_flags & IBV_SEND_SIGNALED)
            complete(qp->send_cq, completion, false);
        if (completion.status)
            fail(own);
    }
    return 0;
}

static int ibv_post_recv_(struct ibv_qp *qp, struct ibv_recv_wr *request, struct ibv_recv_wr **bad) {
    struct queue_pair *own = (struct queue_pair *)qp;
    expect_alive(&own->life, "ibv_post_recv");
    for (; request; request = request->next) {
        int error = injected("ibv_post_recv");
        if (!error && qp->state == IBV_QPS_RESET)
            error = EINVAL;
        if (!error && !put_receive(&own->receives, request))
            error = ENOMEM;
        if (error) {
            *bad = request;
            return error;
        }
        if (qp->state == IBV_QPS_ERR)
            flush(own);
    }
    return 0;
}

static int ibv_post_srq_recv_(struct ibv_srq *srq, struct ibv_recv_wr *request, struct ibv_recv_wr **bad) {
    struct shared_receive_queue *own = (struct shared_receive_queue *)srq;
    expect_alive(&own->life, "ibv_post_srq_recv");
    for (; request; request = request->next) {
        int error = injected("ibv_post_srq_recv");
        if (!error && !put_receive(&own->receives, request))
            error = ENOMEM;
        if (error) {
            *bad = request;
            return error;
        }
    }
    return 0;
}

void set_data_operations(struct verbs_context *verbs) {
    struct ibv_context_ops *operations = &verbs->context.ops;
    operations->poll_cq = ibv_poll_cq_;
    operations->req_notify_cq = ibv_req_notify_cq_;
    operations->post_send = ibv_post_send_;
    operations->post_recv = ibv_post_recv_;
    operations->post_srq_recv = ibv_post_srq_recv_;
}
