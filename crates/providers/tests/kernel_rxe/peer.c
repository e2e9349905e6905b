// The guest's side of a reliable connection: one queue pair of the kernel's rdma_rxe.
//   peer QPN RECEIVE_PSN SEND_PSN SLOTS MTU TIMEOUT GID_INDEX GID
// QPN is the other side's, whose GID is written as an IPv6 address; MTU is 256 to 4096. Prints `peer QPN ADDRESS KEY` (of a
// mebibyte that the other side may use), then does what messages say, with SLOTS receives:
//   one without immediate data is sent back;
//   one with immediate data is an order: the operation is executed, and its status and the 8 bytes
//   at its local offset are sent as a message.
// Prints `failed STATUS` when a request fails, once. Ends with its input.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARENA = 1 << 20, SLOT = 1 << 16, SLOTS_MAX = 64 };
enum { RECEIVE, REPLY, ORDER }; // What a request is, in the upper half of its id.

struct order {
    uint32_t operation; // enum ibv_wr_opcode
    uint32_t key;
    uint64_t address;
    uint32_t offset, length;
    uint64_t compare_add, swap;
};

static struct ibv_mr *region;
static struct ibv_qp *queue_pair;
static char *memory;

static void die(const char *what) {
    printf("error %s: %s\n", what, strerror(errno));
    exit(1);
}

static char *slot(uint32_t number) { return memory + ARENA + (size_t)number * SLOT; }

static void post_receive(uint32_t number) {
    struct ibv_sge place = {.addr = (uintptr_t)slot(number), .length = SLOT, .lkey = region->lkey};
    struct ibv_recv_wr request = {.wr_id = number, .sg_list = &place, .num_sge = 1}, *bad;
    if (ibv_post_recv(queue_pair, &request, &bad)) die("post a receive");
}

static void post(struct ibv_send_wr *request, const void *from, uint32_t length) {
    struct ibv_sge place = {.addr = (uintptr_t)from, .length = length, .lkey = region->lkey};
    struct ibv_send_wr *bad;
    request->sg_list = &place;
    request->num_sge = 1;
    request->send_flags = IBV_SEND_SIGNALED;
    if (ibv_post_send(queue_pair, request, &bad)) die("post a send");
}

static void post_reply(uint32_t number, uint32_t length) {
    struct ibv_send_wr request = {.wr_id = (uint64_t)REPLY << 32 | number, .opcode = IBV_WR_SEND};
    post(&request, slot(number), length);
}

static void execute(uint32_t number) {
    struct order order;
    memcpy(&order, slot(number), sizeof order);
    if (order.offset > ARENA || order.length > ARENA - order.offset) die("understand the order");
    struct ibv_send_wr request = {.wr_id = (uint64_t)ORDER << 32 | number, .opcode = order.operation};
    if (order.operation == IBV_WR_ATOMIC_CMP_AND_SWP || order.operation == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic.remote_addr = order.address;
        request.wr.atomic.rkey = order.key;
        request.wr.atomic.compare_add = order.compare_add;
        request.wr.atomic.swap = order.swap;
    } else {
        request.wr.rdma.remote_addr = order.address;
        request.wr.rdma.rkey = order.key;
    }
    post(&request, memory + order.offset, order.length);
}

static void completed(const struct ibv_wc *completion) {
    static int failed;
    uint32_t number = (uint32_t)completion->wr_id;
    if (completion->status != IBV_WC_SUCCESS) {
        if (!failed++) printf("failed %d\n", completion->status);
        return;
    }
    switch (completion->wr_id >> 32) {
    case RECEIVE:
        if (completion->wc_flags & IBV_WC_WITH_IMM) execute(number);
        else post_reply(number, completion->byte_len);
        break;
    case REPLY:
        post_receive(number);
        break;
    case ORDER: {
        struct order order;
        memcpy(&order, slot(number), sizeof order);
        uint64_t reply[2] = {completion->status, 0};
        memcpy(&reply[1], memory + order.offset, order.length < 8 ? order.length : 8);
        memcpy(slot(number), reply, sizeof reply);
        post_reply(number, sizeof reply);
    }
    }
}

static void connect_pair(char **arguments, enum ibv_mtu mtu) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    if (ibv_modify_qp(queue_pair, &init,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        die("go to INIT");
    struct ibv_qp_attr receive = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = strtoul(arguments[1], NULL, 0),
        .rq_psn = strtoul(arguments[2], NULL, 0),
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.sgid_index = strtoul(arguments[7], NULL, 0), .hop_limit = 64}}};
    if (inet_pton(AF_INET6, arguments[8], &receive.ah_attr.grh.dgid) != 1) die("understand the GID");
    if (ibv_modify_qp(queue_pair, &receive,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        die("go to RTR");
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                               .timeout = strtoul(arguments[6], NULL, 0),
                               .retry_cnt = 7,
                               .rnr_retry = 7,
                               .sq_psn = strtoul(arguments[3], NULL, 0),
                               .max_rd_atomic = 16};
    if (ibv_modify_qp(queue_pair, &send,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
        die("go to RTS");
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count != 9) die("understand the arguments");
    uint32_t slots = strtoul(arguments[4], NULL, 0);
    enum ibv_mtu mtu = IBV_MTU_256;
    for (unsigned bytes = 256; bytes < strtoul(arguments[5], NULL, 0); bytes *= 2) mtu++;
    if (slots < 1 || slots > SLOTS_MAX) die("understand the slots");
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices && *devices ? ibv_open_device(*devices) : NULL;
    if (!context) die("open rxe0");
    struct ibv_pd *domain = ibv_alloc_pd(context);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *queue = ibv_create_cq(context, 4 * SLOTS_MAX, NULL, channel, 0);
    memory = aligned_alloc(4096, ARENA + SLOTS_MAX * SLOT);
    if (!domain || !queue || !memory) die("make a queue");
    memset(memory, 0, ARENA + SLOTS_MAX * SLOT);
    region = ibv_reg_mr(domain, memory, ARENA + SLOTS_MAX * SLOT,
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_ATOMIC);
    struct ibv_qp_init_attr attributes = {
        .send_cq = queue,
        .recv_cq = queue,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 2 * SLOTS_MAX, .max_recv_wr = SLOTS_MAX, .max_send_sge = 1, .max_recv_sge = 1}};
    queue_pair = region ? ibv_create_qp(domain, &attributes) : NULL;
    if (!queue_pair || ibv_req_notify_cq(queue, 0)) die("make a queue pair");
    connect_pair(arguments, mtu);
    for (uint32_t number = 0; number < slots; number++) post_receive(number);
    printf("peer %u %llu %u\n", queue_pair->qp_num, (unsigned long long)(uintptr_t)memory, region->rkey);

    struct pollfd waited[2] = {{.fd = channel->fd, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    while (poll(waited, 2, -1) > 0) {
        char byte;
        if (waited[1].revents && (read(0, &byte, 1) <= 0 || byte == '\n')) break;
        if (!(waited[0].revents & POLLIN)) continue;
        struct ibv_cq *of;
        void *nothing;
        if (ibv_get_cq_event(channel, &of, &nothing) || ibv_req_notify_cq(queue, 0)) die("wait");
        ibv_ack_cq_events(of, 1);
        struct ibv_wc completion;
        while (ibv_poll_cq(queue, 1, &completion) > 0) completed(&completion);
    }
    ibv_destroy_qp(queue_pair);
    printf("peer ends\n");
    return 0;
}
