/* Domains, keys, queues and queue pairs: made, changed and ended. */
#include "stand_in.h"
#include <stdlib.h>
#include <string.h>

static struct keyed *keys;
static struct queue_pair *queue_pairs;

static int end_object(struct life *life, struct users *users, unsigned unacknowledged, const char *function) {
    expect_alive(life, function);
    if (users && users->count)
        return EBUSY;
    if (unacknowledged)
        violation("%s waits for %u events that were not acknowledged", function, unacknowledged);
    end_life(life, function);
    return 0;
}

EXPORTED struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    FAIL_WITH_NULL();
    expect_alive(&context_of(context)->life, __func__);
    struct domain *domain = BEGIN(struct domain, DOMAIN);
    domain->pd.context = context;
    return &domain->pd;
}

EXPORTED int ibv_dealloc_pd(struct ibv_pd *pd) {
    FAIL_WITH_NUMBER();
    struct domain *domain = (struct domain *)pd;
    int error = end_object(&domain->life, &domain->users, 0, __func__);
    return error;
}

static struct keyed *new_key(struct domain *domain, enum kind kind) {
    /* A number of its own above the 8 bits that the owner of a window chooses. */
    static uint32_t number = 0x100;
    struct keyed *keyed = BEGIN(struct keyed, kind);
    keyed->domain = domain;
    domain->users.count++;
    keyed->key = number++ << 8;
    keyed->next = keys;
    keys = keyed;
    return keyed;
}

struct keyed *find_key(uint32_t key) {
    struct keyed *keyed = keys;
    while (keyed && !(keyed->key == key && keyed->life.is_alive))
        keyed = keyed->next;
    return keyed;
}

static struct ibv_mr *register_region(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                      unsigned access) {
    struct domain *domain = (struct domain *)pd;
    expect_alive(&domain->life, "ibv_reg_mr");
    if (iova != (uintptr_t)address) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    struct keyed *keyed = new_key(domain, REGION);
    keyed->address = (uintptr_t)address;
    keyed->length = length;
    keyed->access = access;
    keyed->mr = (struct ibv_mr){.context = pd->context,
                                .pd = pd,
                                .addr = address,
                                .length = length,
                                .lkey = keyed->key,
                                .rkey = keyed->key};
    return &keyed->mr;
}

EXPORTED struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access) {
    FAIL_WITH_NULL();
    return register_region(pd, address, length, (uintptr_t)address, (unsigned)access);
}

EXPORTED struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                         unsigned access) {
    FAIL_WITH_NULL();
    return register_region(pd, address, length, iova, access);
}

EXPORTED int ibv_dereg_mr(struct ibv_mr *mr) {
    FAIL_WITH_NUMBER();
    struct keyed *keyed = (struct keyed *)mr;
    int error = end_object(&keyed->life, &keyed->users, 0, __func__);
    if (!error)
        keyed->domain->users.count--;
    return error;
}

static struct ibv_mw *ibv_alloc_mw_(struct ibv_pd *pd, enum ibv_mw_type type) {
    int error = injected("ibv_alloc_mw");
    if (error) {
        errno = error;
        return NULL;
    }
    struct keyed *keyed = new_key((struct domain *)pd, WINDOW);
    keyed->is_window = true;
    keyed->mw = (struct ibv_mw){.context = pd->context, .pd = pd, .rkey = keyed->key, .type = type};
    return &keyed->mw;
}

static int ibv_dealloc_mw_(struct ibv_mw *mw) {
    int error = injected("ibv_dealloc_mw");
    struct keyed *keyed = (struct keyed *)mw;
    if (!error && !(error = end_object(&keyed->life, NULL, 0, "ibv_dealloc_mw"))) {
        keyed->domain->users.count--;
        if (keyed->region)
            keyed->region->users.count--;
    }
    return error;
}

EXPORTED struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    FAIL_WITH_NULL();
    struct completion_channel *channel = BEGIN(struct completion_channel, COMPLETION_CHANNEL);
    if (!open_mailbox(&channel->events)) {
        end_life(&channel->life, __func__);
        return NULL;
    }
    channel->channel.context = context;
    channel->channel.fd = channel->events.descriptor;
    return &channel->channel;
}

EXPORTED int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    FAIL_WITH_NUMBER();
    struct completion_channel *own = (struct completion_channel *)channel;
    struct users users = {.count = (unsigned)channel->refcnt};
    int error = end_object(&own->life, &users, 0, __func__);
    if (error)
        return error;
    close_mailbox(&own->events);
    return 0;
}

EXPORTED struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
                                      struct ibv_comp_channel *channel, int vector) {
    FAIL_WITH_NULL();
    if (entries < 1 || vector != 0) {
        errno = EINVAL;
        return NULL;
    }
    struct completion_queue *queue = BEGIN(struct completion_queue, COMPLETION_QUEUE);
    queue->entries = calloc((unsigned)entries, sizeof *queue->entries);
    queue->cq.context = context;
    queue->cq.channel = channel;
    queue->cq.cq_context = cq_context;
    queue->cq.cqe = entries;
    if (channel)
        channel->refcnt++;
    return &queue->cq;
}

EXPORTED int ibv_resize_cq(struct ibv_cq *cq, int entries) {
    FAIL_WITH_NUMBER();
    struct completion_queue *queue = (struct completion_queue *)cq;
    expect_alive(&queue->life, __func__);
    if (entries < (int)queue->count)
        return EINVAL;
    struct ibv_wc *ring = calloc((unsigned)entries, sizeof *ring);
    for (unsigned n = 0; n < queue->count; n++)
        ring[n] = queue->entries[(queue->first + n) % (unsigned)cq->cqe];
    free(queue->entries);
    queue->entries = ring;
    queue->first = 0;
    cq->cqe = entries;
    return 0;
}

static bool is_about_queue(void *content, void *queue) {
    return *(void **)content == queue;
}

EXPORTED int ibv_destroy_cq(struct ibv_cq *cq) {
    FAIL_WITH_NUMBER();
    struct completion_queue *queue = (struct completion_queue *)cq;
    int error = end_object(&queue->life, &queue->users, queue->unacknowledged, __func__);
    if (error)
        return error;
    if (cq->channel) {
        discard_letters(&((struct completion_channel *)cq->channel)->events, is_about_queue, cq);
        cq->channel->refcnt--;
    }
    return 0;
}

EXPORTED int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    FAIL_WITH_ERRNO();
    void **content = take_letter(&((struct completion_channel *)channel)->events);
    if (!content)
        return -1;
    *cq = *content;
    free(content);
    *cq_context = (*cq)->cq_context;
    ((struct completion_queue *)*cq)->unacknowledged++;
    count_live(UNACKNOWLEDGED_EVENT, 1);
    return 0;
}

EXPORTED void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count) {
    called(__func__);
    struct completion_queue *queue = (struct completion_queue *)cq;
    expect_alive(&queue->life, __func__);
    if (count > queue->unacknowledged)
        violation("%u events acknowledged of %u", count, queue->unacknowledged);
    queue->unacknowledged -= count;
    count_live(UNACKNOWLEDGED_EVENT, -(int)count);
}

static bool size_receives(struct receives *receives, unsigned size) {
    receives->size = size;
    receives->ring = calloc(size + 1, sizeof *receives->ring);
    return receives->ring;
}

bool put_receive(struct receives *receives, const struct ibv_recv_wr *request) {
    if (receives->count == receives->size)
        return false;
    struct receive *receive = &receives->ring[(receives->first + receives->count++) % receives->size];
    receive->wr_id = request->wr_id;
    receive->entries = request->num_sge;
    memcpy(receive->entry, request->sg_list, (unsigned)request->num_sge * sizeof *request->sg_list);
    return true;
}

bool take_receive(struct receives *receives, struct receive *into) {
    if (!receives->count)
        return false;
    *into = receives->ring[receives->first];
    receives->first = (receives->first + 1) % receives->size;
    receives->count--;
    return true;
}

EXPORTED struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init) {
    FAIL_WITH_NULL();
    struct shared_receive_queue *queue = BEGIN(struct shared_receive_queue, SHARED_RECEIVE_QUEUE);
    if (!size_receives(&queue->receives, init->attr.max_wr)) {
        end_life(&queue->life, __func__);
        errno = ENOMEM;
        return NULL;
    }
    queue->srq.context = pd->context;
    queue->srq.srq_context = init->srq_context;
    queue->srq.pd = pd;
    queue->entries_max = init->attr.max_sge;
    ((struct domain *)pd)->users.count++;
    return &queue->srq;
}

EXPORTED int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attributes, int mask) {
    FAIL_WITH_NUMBER();
    struct shared_receive_queue *queue = (struct shared_receive_queue *)srq;
    expect_alive(&queue->life, __func__);
    if (mask != IBV_SRQ_LIMIT || attributes->srq_limit > queue->receives.size)
        return EINVAL;
    queue->limit = attributes->srq_limit;
    return 0;
}

EXPORTED int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *into) {
    FAIL_WITH_NUMBER();
    struct shared_receive_queue *queue = (struct shared_receive_queue *)srq;
    expect_alive(&queue->life, __func__);
    *into = (struct ibv_srq_attr){
        .max_wr = queue->receives.size, .max_sge = queue->entries_max, .srq_limit = queue->limit};
    return 0;
}

EXPORTED int ibv_destroy_srq(struct ibv_srq *srq) {
    FAIL_WITH_NUMBER();
    struct shared_receive_queue *queue = (struct shared_receive_queue *)srq;
    int error = end_object(&queue->life, &queue->users, queue->unacknowledged, __func__);
    if (!error)
        ((struct domain *)srq->pd)->users.count--;
    return error;
}

struct queue_pair *find_queue_pair(uint32_t number) {
    struct queue_pair *queue_pair = queue_pairs;
    while (queue_pair && !(queue_pair->qp.qp_num == number && queue_pair->life.is_alive))
        queue_pair = queue_pair->next;
    return queue_pair;
}

static void count_users_of(struct ibv_qp *qp, int change) {
    ((struct domain *)qp->pd)->users.count += (unsigned)change;
    ((struct completion_queue *)qp->send_cq)->users.count += (unsigned)change;
    ((struct completion_queue *)qp->recv_cq)->users.count += (unsigned)change;
    if (qp->srq)
        ((struct shared_receive_queue *)qp->srq)->users.count += (unsigned)change;
}

EXPORTED struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
    static uint32_t number = 17;
    FAIL_WITH_NULL();
    expect_alive(&((struct domain *)pd)->life, __func__);
    struct queue_pair *queue_pair = BEGIN(struct queue_pair, QUEUE_PAIR);
    if (init->qp_type != IBV_QPT_RC || !size_receives(&queue_pair->receives, init->cap.max_recv_wr)) {
        end_life(&queue_pair->life, __func__);
        errno = EINVAL;
        return NULL;
    }
    queue_pair->qp = (struct ibv_qp){.context = pd->context,
                                     .qp_context = init->qp_context,
                                     .pd = pd,
                                     .send_cq = init->send_cq,
                                     .recv_cq = init->recv_cq,
                                     .srq = init->srq,
                                     .qp_num = number++,
                                     .state = IBV_QPS_RESET,
                                     .qp_type = init->qp_type};
    queue_pair->capabilities = init->cap;
    queue_pair->signals_all = init->sq_sig_all;
    count_users_of(&queue_pair->qp, 1);
    queue_pair->next = queue_pairs;
    queue_pairs = queue_pair;
    return &queue_pair->qp;
}

/* The states that one may be left for; Reset and Error may be entered from all. */
static bool leads_to(enum ibv_qp_state from, enum ibv_qp_state to) {
    switch (to) {
    case IBV_QPS_RESET:
    case IBV_QPS_ERR:
        return true;
    case IBV_QPS_INIT:
        return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
    case IBV_QPS_RTR:
        return from == IBV_QPS_INIT;
    case IBV_QPS_RTS:
        return from == IBV_QPS_RTR || from == IBV_QPS_RTS || from == IBV_QPS_SQD || from == IBV_QPS_SQE;
    case IBV_QPS_SQD:
        return from == IBV_QPS_RTS || from == IBV_QPS_SQD;
    default:
        return false;
    }
}

EXPORTED int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    FAIL_WITH_NUMBER();
    struct queue_pair *queue_pair = (struct queue_pair *)qp;
    expect_alive(&queue_pair->life, __func__);
    enum ibv_qp_state to = mask & IBV_QP_STATE ? attributes->qp_state : qp->state;
    if (!leads_to(qp->state, to))
        return EINVAL;
    if (mask & IBV_QP_DEST_QPN)
        queue_pair->attributes.dest_qp_num = attributes->dest_qp_num;
    if (mask & IBV_QP_ACCESS_FLAGS)
        queue_pair->attributes.qp_access_flags = attributes->qp_access_flags;
    bool fails = to == IBV_QPS_ERR && qp->state != IBV_QPS_ERR;
    qp->state = queue_pair->attributes.qp_state = to;
    if (to == IBV_QPS_RESET)
        queue_pair->receives.count = 0;
    if (fails)
        flush(queue_pair);
    return 0;
}

EXPORTED int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *into, int mask, struct ibv_qp_init_attr *init) {
    FAIL_WITH_NUMBER();
    (void)mask;
    struct queue_pair *queue_pair = (struct queue_pair *)qp;
    expect_alive(&queue_pair->life, __func__);
    *into = queue_pair->attributes;
    into->qp_state = into->cur_qp_state = qp->state;
    *init = (struct ibv_qp_init_attr){.qp_context = qp->qp_context,
                                      .send_cq = qp->send_cq,
                                      .recv_cq = qp->recv_cq,
                                      .srq = qp->srq,
                                      .cap = queue_pair->capabilities,
                                      .qp_type = qp->qp_type};
    return 0;
}

static bool is_about_queue_pair(void *content, void *qp) {
    const struct ibv_async_event *event = content;
    return event->element.qp == qp;
}

EXPORTED int ibv_destroy_qp(struct ibv_qp *qp) {
    FAIL_WITH_NUMBER();
    struct queue_pair *queue_pair = (struct queue_pair *)qp;
    int error = end_object(&queue_pair->life, NULL, queue_pair->unacknowledged, __func__);
    if (error)
        return error;
    count_users_of(qp, -1);
    discard_letters(&context_of(qp->context)->events, is_about_queue_pair, qp);
    return 0;
}

/* The inline functions of the headers go through these. */
void set_object_operations(struct verbs_context *verbs) {
    verbs->context.ops.alloc_mw = ibv_alloc_mw_;
    verbs->context.ops.dealloc_mw = ibv_dealloc_mw_;
}
