/* The device, its port and its events. */
#include "stand_in.h"
#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 4, QUEUE_PAIRS_MAX = 1024, REQUESTS_MAX = 4096, ENTRIES_MAX = 16 };

static struct ibv_device devices[DEVICES_MAX];

static struct ibv_device *device(unsigned n) {
    struct ibv_device *device = &devices[n];
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    strcpy(device->name, "standin0");
    strcpy(device->dev_name, "uverbs0");
    device->name[7] = device->dev_name[6] = (char)('0' + n);
    return device;
}

EXPORTED struct ibv_device **ibv_get_device_list(int *count) {
    FAIL_WITH_NULL();
    unsigned wanted = devices_wanted();
    struct ibv_device **list = calloc(DEVICES_MAX + 1, sizeof *list);
    for (unsigned n = 0; n < wanted && n < DEVICES_MAX; n++)
        list[n] = device(n);
    if (count)
        *count = (int)wanted;
    count_live(DEVICE_LIST, 1);
    return list;
}

EXPORTED void ibv_free_device_list(struct ibv_device **list) {
    called(__func__);
    count_live(DEVICE_LIST, -1);
    free(list);
}

EXPORTED const char *ibv_get_device_name(struct ibv_device *device) {
    FAIL_WITH_NULL();
    return device->name;
}

EXPORTED __be64 ibv_get_device_guid(struct ibv_device *device) {
    (void)device;
    called(__func__);
    return htobe64(0x0200000000000001);
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *into, size_t length) {
    expect_alive(&context_of(context)->life, "ibv_query_port");
    if (port != 1)
        return EINVAL;
    struct ibv_port_attr attributes = {
        .state = IBV_PORT_ACTIVE,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = IBV_MTU_1024,
        .gid_tbl_len = 2,
        .max_msg_sz = 1u << 30,
        .pkey_tbl_len = 1,
        .active_width = 2,
        .active_speed = 4,
        .phys_state = 5,
        .link_layer = IBV_LINK_LAYER_ETHERNET,
    };
    memcpy(into, &attributes, length < sizeof attributes ? length : sizeof attributes);
    return 0;
}

/* What a program that is compiled with the headers calls directly, and the function below else. */
static int query_port_of_operations(struct ibv_context *context, uint8_t port, struct ibv_port_attr *into,
                                    size_t length) {
    int error = injected("ibv_query_port");
    return error ? error : query_port(context, port, into, length);
}

EXPORTED int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *into) {
    FAIL_WITH_NUMBER();
    return query_port(context, port, (struct ibv_port_attr *)into,
                      offsetof(struct ibv_port_attr, port_cap_flags2));
}

static struct device_context *new_context(struct ibv_device *device) {
    struct device_context *context = BEGIN(struct device_context, CONTEXT);
    struct verbs_context *verbs = &context->verbs;
    if (!open_mailbox(&context->events)) {
        end_life(&context->life, "ibv_open_device");
        return NULL;
    }
    verbs->sz = sizeof *verbs;
    verbs->query_port = query_port_of_operations;
    verbs->context.device = device;
    verbs->context.cmd_fd = -1;
    verbs->context.async_fd = context->events.descriptor;
    verbs->context.num_comp_vectors = 1;
    verbs->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    set_object_operations(verbs);
    set_data_operations(verbs);
    return context;
}

struct device_context *context_of(struct ibv_context *context) {
    struct verbs_context *verbs = (struct verbs_context *)((char *)context - offsetof(struct verbs_context, context));
    return (struct device_context *)((char *)verbs - offsetof(struct device_context, verbs));
}

struct ibv_context *context_of_cm(void) {
    /* It lives as long as the library, and is nobody's to close. */
    static struct device_context *context;
    if (!context && (context = new_context(device(0))))
        count_live(CONTEXT, -1);
    return context ? &context->verbs.context : NULL;
}

EXPORTED struct ibv_context *ibv_open_device(struct ibv_device *device) {
    FAIL_WITH_NULL();
    struct device_context *context = new_context(device);
    return context ? &context->verbs.context : NULL;
}

/* The kernel ends what is left of it. */
EXPORTED int ibv_close_device(struct ibv_context *context) {
    FAIL_WITH_ERRNO();
    struct device_context *own = context_of(context);
    if (context == context_of_cm())
        violation("the context of connection management is closed");
    end_life(&own->life, __func__);
    close_mailbox(&own->events);
    return 0;
}

EXPORTED int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *into) {
    FAIL_WITH_NUMBER();
    expect_alive(&context_of(context)->life, __func__);
    *into = (struct ibv_device_attr){
        .fw_ver = "1",
        .max_mr_size = UINT64_MAX,
        .page_size_cap = 4096,
        .max_qp = QUEUE_PAIRS_MAX,
        .max_qp_wr = REQUESTS_MAX,
        .device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS |
                            IBV_DEVICE_SRQ_RESIZE,
        .max_sge = ENTRIES_MAX,
        .max_sge_rd = ENTRIES_MAX,
        .max_cq = 1024,
        .max_cqe = 65536,
        .max_mr = 4096,
        .max_pd = 64,
        .max_qp_rd_atom = 16,
        .max_res_rd_atom = 4096,
        .max_qp_init_rd_atom = 16,
        .atomic_cap = IBV_ATOMIC_HCA,
        .max_mw = 4096,
        .max_ah = 64,
        .max_srq = 64,
        .max_srq_wr = REQUESTS_MAX,
        .max_srq_sge = ENTRIES_MAX,
        .max_pkeys = 1,
        .local_ca_ack_delay = 15,
        .phys_port_cnt = 1,
    };
    return 0;
}

/* fe80::1 and 127.0.0.1, as RoCE version 2. */
static const union ibv_gid gids[2] = {
    {.raw = {0xfe, 0x80, [15] = 1}},
    {.raw = {[10] = 0xff, 0xff, 127, 0, 0, 1}},
};

/* Changes of the table of GIDs that were told. The second one takes 127.0.0.1 away and the third one brings it back;
 * the first one is about another's address. */
static unsigned changes;

static bool is_in_use(uint32_t index) {
    return index == 0 || (index == 1 && changes != 2);
}

EXPORTED int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *into) {
    FAIL_WITH_ERRNO();
    expect_alive(&context_of(context)->life, __func__);
    if (port != 1 || index < 0 || index > 1) {
        errno = EINVAL;
        return -1;
    }
    *into = gids[index];
    return 0;
}

static void fill_gid(struct ibv_gid_entry *into, uint32_t index) {
    *into = (struct ibv_gid_entry){
        .gid = gids[index], .gid_index = index, .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2, .ndev_ifindex = 1};
}

EXPORTED int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
                               struct ibv_gid_entry *into, uint32_t flags, size_t length) {
    FAIL_WITH_NUMBER();
    expect_alive(&context_of(context)->life, __func__);
    if (port != 1 || index > 1 || flags || length < sizeof *into)
        return EINVAL;
    if (!is_in_use(index))
        return ENODATA;
    fill_gid(into, index);
    return 0;
}

EXPORTED ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *into, size_t count,
                                      uint32_t flags, size_t length) {
    int error = injected(__func__);
    expect_alive(&context_of(context)->life, __func__);
    if (error || flags || length != sizeof *into)
        return error ? -error : -EINVAL;
    uint32_t index = 0;
    for (; index < 2 && index < count; index++)
        fill_gid(&into[index], index);
    return index;
}

void raise_event(struct ibv_context *context, enum ibv_event_type type, void *element) {
    struct ibv_async_event *event = calloc(1, sizeof *event);
    event->event_type = type;
    event->element.cq = element;
    put_letter(&context_of(context)->events, event);
}

void raise_port_event(struct ibv_context *context, enum ibv_event_type type, int port) {
    struct ibv_async_event *event = calloc(1, sizeof *event);
    event->event_type = type;
    event->element.port_num = port;
    put_letter(&context_of(context)->events, event);
}

/* The count of events that were got and not acknowledged, of the object that an event is about. */
static unsigned *unacknowledged(const struct ibv_async_event *event) {
    static unsigned of_ports;
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        return &((struct completion_queue *)event->element.cq)->unacknowledged;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        return &((struct shared_receive_queue *)event->element.srq)->unacknowledged;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_GID_CHANGE:
        return &of_ports;
    default:
        return &((struct queue_pair *)event->element.qp)->unacknowledged;
    }
}

EXPORTED int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *into) {
    FAIL_WITH_ERRNO();
    expect_alive(&context_of(context)->life, __func__);
    struct ibv_async_event *event = take_letter(&context_of(context)->events);
    if (!event)
        return -1;
    *into = *event;
    free(event);
    changes += into->event_type == IBV_EVENT_GID_CHANGE;
    ++*unacknowledged(into);
    count_live(UNACKNOWLEDGED_EVENT, 1);
    return 0;
}

EXPORTED void ibv_ack_async_event(struct ibv_async_event *event) {
    called(__func__);
    --*unacknowledged(event);
    count_live(UNACKNOWLEDGED_EVENT, -1);
}
