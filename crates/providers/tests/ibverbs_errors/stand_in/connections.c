/* Connection management, between ids of this process. */
#include "stand_in.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

/* What the InfiniBand CM says (IB spec table 108), and how rdma_cm(7) passes it on. */
enum { NOBODY_LISTENS = 8, CONSUMER_REJECT = 28, PRIVATE_DATA_MAX = 56 };

struct channel {
    struct rdma_event_channel channel;
    struct life life;
    struct mailbox events;
};

enum phase { IDLE, LISTENING, ASKING, ASKED, ANSWERED, CONNECTED, OVER };

struct id {
    struct rdma_cm_id id;
    struct life life;
    struct id *next;
    struct id *peer;
    enum phase phase;
    uint32_t queue_pair;
    bool knows_that_it_is_connected;
    unsigned unacknowledged;
};

struct event {
    struct rdma_cm_event event;
    char private_data[PRIVATE_DATA_MAX];
};

static struct id *ids;

static struct id *own(struct rdma_cm_id *id, const char *function) {
    struct id *it = (struct id *)id;
    expect_alive(&it->life, function);
    expect_alive(&((struct channel *)id->channel)->life, function);
    return it;
}

EXPORTED struct rdma_event_channel *rdma_create_event_channel(void) {
    FAIL_WITH_NULL();
    struct channel *channel = BEGIN(struct channel, CM_CHANNEL);
    if (!open_mailbox(&channel->events)) {
        end_life(&channel->life, __func__);
        return NULL;
    }
    channel->channel.fd = channel->events.descriptor;
    return &channel->channel;
}

EXPORTED void rdma_destroy_event_channel(struct rdma_event_channel *channel) {
    called(__func__);
    struct channel *it = (struct channel *)channel;
    /* Ids of it end with the process, unless they are used before: own() sees that. */
    end_life(&it->life, __func__);
    close_mailbox(&it->events);
}

static struct id *new_id(struct rdma_event_channel *channel, void *context, enum rdma_port_space space) {
    struct id *it = BEGIN(struct id, CM_ID);
    it->id.channel = channel;
    it->id.context = context;
    it->id.ps = space;
    it->id.qp_type = IBV_QPT_RC;
    it->next = ids;
    ids = it;
    return it;
}

EXPORTED int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                            enum rdma_port_space space) {
    FAIL_WITH_ERRNO();
    expect_alive(&((struct channel *)channel)->life, __func__);
    *id = &new_id(channel, context, space)->id;
    return 0;
}

static void write_to(struct id *it, struct id *listener, enum rdma_cm_event_type type, int status,
                     const struct rdma_conn_param *parameters);

/* Tells an id something, unless that is to get lost. */
static void tell(struct id *it, struct id *listener, enum rdma_cm_event_type type, int status,
                 const struct rdma_conn_param *parameters) {
    if (is_silent(type))
        return;
    write_to(it, listener, type, status, parameters);
}

static void write_to(struct id *it, struct id *listener, enum rdma_cm_event_type type, int status,
                     const struct rdma_conn_param *parameters) {
    it->knows_that_it_is_connected |= type == RDMA_CM_EVENT_ESTABLISHED;
    struct event *event = calloc(1, sizeof *event);
    event->event.id = &it->id;
    event->event.listen_id = listener ? &listener->id : NULL;
    event->event.event = type;
    event->event.status = status;
    if (parameters) {
        event->event.param.conn = *parameters;
        event->event.param.conn.private_data = NULL;
        if (parameters->private_data_len > PRIVATE_DATA_MAX)
            violation("%u bytes of private data", parameters->private_data_len);
        else if (parameters->private_data_len) {
            memcpy(event->private_data, parameters->private_data, parameters->private_data_len);
            event->event.param.conn.private_data = event->private_data;
        }
        /* As InfiniBand has it: all of the message's room. */
        if (event->event.param.conn.private_data)
            event->event.param.conn.private_data_len = PRIVATE_DATA_MAX;
    }
    put_letter(&((struct channel *)it->id.channel)->events, event);
}

static void use_device(struct id *it) {
    it->id.verbs = context_of_cm();
    it->id.port_num = 1;
}

static in_port_t *port_of(struct sockaddr *address) {
    return address->sa_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
                                          : &((struct sockaddr_in *)address)->sin_port;
}

static size_t length_of(const struct sockaddr *address) {
    return address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static struct id *listener_at(in_port_t port) {
    struct id *it = ids;
    while (it && !(it->life.is_alive && it->phase == LISTENING && *port_of(rdma_get_local_addr(&it->id)) == port))
        it = it->next;
    return it;
}

EXPORTED int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    static in_port_t next = 40000;
    memcpy(rdma_get_local_addr(id), address, length_of(address));
    in_port_t *port = port_of(rdma_get_local_addr(id));
    if (!*port)
        *port = htons(next++);
    use_device(it);
    return 0;
}

EXPORTED __be16 rdma_get_src_port(struct rdma_cm_id *id) {
    called(__func__);
    return *port_of(rdma_get_local_addr(id));
}

EXPORTED __be16 rdma_get_dst_port(struct rdma_cm_id *id) {
    called(__func__);
    return *port_of(rdma_get_peer_addr(id));
}

EXPORTED int rdma_set_option(struct rdma_cm_id *id, int level, int option, void *value, size_t length) {
    FAIL_WITH_ERRNO();
    (void)own(id, __func__), (void)level, (void)option, (void)value, (void)length;
    return 0;
}

EXPORTED int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int timeout_ms) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    if (timeout_ms <= 0)
        violation("an address is resolved without a limit");
    if (from)
        memcpy(rdma_get_local_addr(id), from, length_of(from));
    memcpy(rdma_get_peer_addr(id), to, length_of(to));
    use_device(it);
    tell(it, NULL, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL);
    return 0;
}

EXPORTED int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms) {
    FAIL_WITH_ERRNO();
    if (timeout_ms <= 0)
        violation("a route is resolved without a limit");
    tell(own(id, __func__), NULL, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL);
    return 0;
}

EXPORTED int rdma_listen(struct rdma_cm_id *id, int backlog) {
    FAIL_WITH_ERRNO();
    (void)backlog;
    struct id *it = own(id, __func__);
    if (listener_at(*port_of(rdma_get_local_addr(id)))) {
        errno = EADDRINUSE;
        return -1;
    }
    it->phase = LISTENING;
    return 0;
}

EXPORTED int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *parameters) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    if (parameters->retry_count >= 7 || parameters->rnr_retry_count >= 7)
        violation("%u and %u retries: 7 is without end", parameters->retry_count, parameters->rnr_retry_count);
    struct id *listener = listener_at(*port_of(rdma_get_peer_addr(id)));
    it->phase = ASKING;
    it->queue_pair = id->qp ? id->qp->qp_num : parameters->qp_num;
    if (!listener) {
        it->phase = OVER;
        tell(it, NULL, RDMA_CM_EVENT_REJECTED, NOBODY_LISTENS, NULL);
        return 0;
    }
    struct id *asked = new_id(listener->id.channel, listener->id.context, id->ps);
    asked->phase = ASKED;
    asked->peer = it;
    it->peer = asked;
    memcpy(rdma_get_local_addr(&asked->id), rdma_get_local_addr(&listener->id),
           length_of(rdma_get_local_addr(&listener->id)));
    memcpy(rdma_get_peer_addr(&asked->id), rdma_get_local_addr(id), length_of(rdma_get_peer_addr(id)));
    use_device(asked);
    struct rdma_conn_param told = *parameters;
    told.qp_num = it->queue_pair;
    if (is_silent(RDMA_CM_EVENT_CONNECT_REQUEST))
        /* Nobody has learnt of it, who could end it. */
        end_life(&asked->life, __func__), it->peer = NULL;
    else
        tell(asked, listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0, &told);
    return 0;
}

EXPORTED int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *parameters) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    if (it->phase != ASKED || !it->peer || !it->peer->life.is_alive) {
        errno = ENOTCONN;
        return -1;
    }
    if (parameters->rnr_retry_count >= 7)
        violation("%u retries: 7 is without end", parameters->rnr_retry_count);
    it->queue_pair = id->qp ? id->qp->qp_num : parameters->qp_num;
    it->phase = ANSWERED;
    struct rdma_conn_param told = *parameters;
    told.qp_num = it->queue_pair;
    tell(it->peer, NULL, it->peer->id.qp ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_RESPONSE, 0, &told);
    return 0;
}

EXPORTED int rdma_establish(struct rdma_cm_id *id) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    if (it->phase != ASKING || !it->peer) {
        errno = EINVAL;
        return -1;
    }
    it->phase = it->peer->phase = CONNECTED;
    it->knows_that_it_is_connected = true;
    if (it->peer->life.is_alive) {
        tell(it->peer, NULL, RDMA_CM_EVENT_ESTABLISHED, 0, NULL);
        tell(it->peer, NULL, RDMA_CM_EVENT_ADDR_CHANGE, 0, NULL);
    }
    return 0;
}

EXPORTED int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    if (event != IBV_EVENT_COMM_EST || it->phase != CONNECTED) {
        errno = EINVAL;
        return -1;
    }
    if (!it->knows_that_it_is_connected)
        write_to(it, NULL, RDMA_CM_EVENT_ESTABLISHED, 0, NULL);
    return 0;
}

bool knows_that_it_is_connected(uint32_t queue_pair) {
    struct id *it = ids;
    while (it && !(it->life.is_alive && it->phase == CONNECTED && it->queue_pair == queue_pair))
        it = it->next;
    return !it || it->knows_that_it_is_connected;
}

static void part(struct id *it, enum rdma_cm_event_type type, int status, const struct rdma_conn_param *parameters) {
    struct id *peer = it->peer;
    it->phase = OVER;
    if (!peer || !peer->life.is_alive || peer->phase == OVER)
        return;
    peer->phase = OVER;
    tell(peer, NULL, type, status, parameters);
    if (type == RDMA_CM_EVENT_DISCONNECTED)
        tell(peer, NULL, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, NULL);
}

EXPORTED int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t length) {
    FAIL_WITH_ERRNO();
    struct rdma_conn_param told = {.private_data = private_data, .private_data_len = length};
    part(own(id, __func__), RDMA_CM_EVENT_REJECTED, CONSUMER_REJECT, &told);
    return 0;
}

EXPORTED int rdma_disconnect(struct rdma_cm_id *id) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    if (it->phase != CONNECTED && it->phase != ANSWERED) {
        errno = EINVAL;
        return -1;
    }
    part(it, RDMA_CM_EVENT_DISCONNECTED, 0, NULL);
    tell(it, NULL, RDMA_CM_EVENT_DISCONNECTED, 0, NULL);
    tell(it, NULL, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, NULL);
    return 0;
}

/* All that the connection says about a state of its queue pair. */
EXPORTED int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attributes, int *mask) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    switch (attributes->qp_state) {
    case IBV_QPS_INIT:
        attributes->port_num = 1;
        attributes->qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        *mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        return 0;
    case IBV_QPS_RTR:
        attributes->path_mtu = IBV_MTU_1024;
        attributes->dest_qp_num = it->peer ? it->peer->queue_pair : 0;
        attributes->rq_psn = 1;
        attributes->max_dest_rd_atomic = 16;
        attributes->min_rnr_timer = 12;
        attributes->ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1};
        *mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        return 0;
    case IBV_QPS_RTS:
        attributes->sq_psn = 1;
        attributes->timeout = 14;
        attributes->retry_cnt = 6;
        attributes->rnr_retry = 6;
        attributes->max_rd_atomic = 16;
        *mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                IBV_QP_MAX_QP_RD_ATOMIC;
        return 0;
    default:
        errno = EINVAL;
        return -1;
    }
}

EXPORTED int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **into) {
    FAIL_WITH_ERRNO();
    struct event *event = take_letter(&((struct channel *)channel)->events);
    if (!event)
        return -1;
    *into = &event->event;
    ((struct id *)event->event.id)->unacknowledged++;
    count_live(UNACKNOWLEDGED_EVENT, 1);
    return 0;
}

/* The real one fails for no event alone. */
EXPORTED int rdma_ack_cm_event(struct rdma_cm_event *event) {
    called(__func__);
    ((struct id *)event->id)->unacknowledged--;
    count_live(UNACKNOWLEDGED_EVENT, -1);
    free(event);
    return 0;
}

/* Also the ids of requests that nobody has been told of yet. */
static bool is_about_id(void *content, void *id) {
    const struct event *event = content;
    if (event->event.listen_id == id && event->event.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        struct id *asked = (struct id *)event->event.id;
        part(asked, RDMA_CM_EVENT_REJECTED, NOBODY_LISTENS, NULL);
        end_life(&asked->life, "rdma_destroy_id of its listener");
        return true;
    }
    return event->event.id == id;
}

EXPORTED int rdma_destroy_id(struct rdma_cm_id *id) {
    FAIL_WITH_ERRNO();
    struct id *it = own(id, __func__);
    struct channel *channel = (struct channel *)id->channel;
    if (it->unacknowledged)
        violation("rdma_destroy_id waits for %u events that were not acknowledged", it->unacknowledged);
    if (id->qp)
        violation("an id ends that has a queue pair");
    if (it->phase == CONNECTED || it->phase == ANSWERED)
        part(it, RDMA_CM_EVENT_DISCONNECTED, 0, NULL);
    else if (it->phase == ASKED)
        part(it, RDMA_CM_EVENT_REJECTED, CONSUMER_REJECT, NULL);
    discard_letters(&channel->events, is_about_id, id);
    end_life(&it->life, __func__);
    return 0;
}

EXPORTED struct ibv_context **rdma_get_devices(int *count) {
    FAIL_WITH_NULL();
    struct ibv_context **list = calloc(2, sizeof *list);
    list[0] = context_of_cm();
    if (count)
        *count = 1;
    return list;
}

EXPORTED void rdma_free_devices(struct ibv_context **list) {
    called(__func__);
    free(list);
}
