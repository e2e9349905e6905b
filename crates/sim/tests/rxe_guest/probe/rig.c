// The ends, their connections and their completions.
#define _GNU_SOURCE
#include "rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const struct tune usual = {.timeout = 14, .retry_count = 3, .rnr_retry = 3, .access = ALL_ACCESS};
struct ibv_context *device;
struct ibv_pd *domain;
struct area source, inbox;
static union ibv_gid gid;
static int gid_index;

void must(bool ok, const char *what) {
    if (ok)
        return;
    fflush(stdout);
    fprintf(stderr, "probe: %s: %s\n", what, strerror(errno));
    exit(1);
}

void rig_open(void) {
    // Whatever the device's own threads have to do goes before the next step of a probe.
    struct sched_param none = {0};
    must(!sched_setscheduler(0, SCHED_IDLE, &none), "sched_setscheduler");
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    must(list && count, "no device");
    device = ibv_open_device(list[0]);
    must(device, "ibv_open_device");
    ibv_free_device_list(list);
    must(!fcntl(device->async_fd, F_SETFL, O_NONBLOCK), "events that do not block");
    static const uint8_t ipv4[12] = {[10] = 0xff, [11] = 0xff};
    for (gid_index = 0; gid_index < 16; gid_index++)
        if (!ibv_query_gid(device, 1, gid_index, &gid) && !memcmp(gid.raw, ipv4, sizeof ipv4))
            break;
    must(gid_index < 16, "no IPv4 address");
    domain = ibv_alloc_pd(device);
    must(domain, "ibv_alloc_pd");
    source = area_new(domain, AREA, IBV_ACCESS_LOCAL_WRITE);
    inbox = area_new(domain, AREA, IBV_ACCESS_LOCAL_WRITE);
    for (int i = 0; i < AREA; i++)
        source.bytes[i] = (char)(i % 251 + 1);
}

struct area area_new(struct ibv_pd *pd, int registered, int access) {
    struct area area = {.bytes = aligned_alloc(4096, AREA)};
    must(area.bytes, "aligned_alloc");
    memset(area.bytes, 0, AREA);
    area.mr = ibv_reg_mr(pd, area.bytes, registered, access);
    must(area.mr, "ibv_reg_mr");
    return area;
}

void area_free(struct area *area) {
    if (area->mr)
        must(!ibv_dereg_mr(area->mr), "ibv_dereg_mr");
    free(area->bytes);
}

int area_written(const struct area *area) {
    int written = 0;
    while (written < AREA && area->bytes[written] == source.bytes[written])
        written++;
    return written;
}

bool area_untouched(const struct area *area) {
    for (int i = 0; i < AREA; i++)
        if (area->bytes[i])
            return false;
    return true;
}

struct end end_new(struct shape shape) {
    struct end end = {.cq = shape.cq, .shares_cq = shape.cq != NULL};
    if (!end.cq)
        end.cq = ibv_create_cq(device, 128, NULL, NULL, 0);
    must(end.cq, "ibv_create_cq");
    struct ibv_qp_init_attr made = {
        .send_cq = end.cq,
        .recv_cq = end.cq,
        .srq = shape.srq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = !shape.silent,
        .cap = {.max_send_wr = shape.sends ? shape.sends : QUEUE,
                .max_recv_wr = shape.srq        ? 0
                               : shape.receives ? shape.receives
                                                : QUEUE,
                .max_send_sge = 1,
                .max_recv_sge = shape.srq ? 0 : 1,
                .max_inline_data = 64},
    };
    end.qp = ibv_create_qp(domain, &made);
    must(end.qp, "ibv_create_qp");
    return end;
}

void end_free(struct end *end) {
    if (end->qp)
        must(!ibv_destroy_qp(end->qp), "ibv_destroy_qp");
    if (!end->shares_cq)
        must(!ibv_destroy_cq(end->cq), "ibv_destroy_cq");
}

int to_init(struct end *end, int access) {
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    return ibv_modify_qp(end->qp, &to,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int to_rtr(struct end *end, uint32_t destination) {
    struct ibv_qp_attr to = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = destination,
        .rq_psn = 100,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 1}},
    };
    return ibv_modify_qp(end->qp, &to,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int to_rts(struct end *end, const struct tune *tune) {
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTS,
                             .timeout = tune->timeout,
                             .retry_cnt = tune->retry_count,
                             .rnr_retry = tune->rnr_retry,
                             .sq_psn = 100,
                             .max_rd_atomic = 4};
    return ibv_modify_qp(end->qp, &to,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int to_state(struct end *end, enum ibv_qp_state state) {
    struct ibv_qp_attr to = {.qp_state = state};
    return ibv_modify_qp(end->qp, &to, IBV_QP_STATE);
}

enum ibv_qp_state state_of(struct end *end) {
    struct ibv_qp_attr now;
    struct ibv_qp_init_attr made;
    must(!ibv_query_qp(end->qp, &now, IBV_QP_STATE, &made), "ibv_query_qp");
    return now.qp_state;
}

const char *state_name(enum ibv_qp_state state) {
    static const char *names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return names[state];
}

void reach(struct end *end, uint32_t destination, const struct tune *tune) {
    must(!to_init(end, tune->access), "to INIT");
    must(!to_rtr(end, destination), "to RTR");
    must(!to_rts(end, tune), "to RTS");
}

void join_tuned(struct end *a, struct end *b, const struct tune *tune) {
    reach(a, b->qp->qp_num, tune);
    reach(b, a->qp->qp_num, tune);
}

void join(struct end *a, struct end *b) {
    join_tuned(a, b, &usual);
}

int post(struct end *end, struct ibv_send_wr *request, int length) {
    bool reads = request->opcode == IBV_WR_RDMA_READ ||
                 request->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
                 request->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    struct area *local = reads ? &inbox : &source;
    struct ibv_sge piece = {(uintptr_t)local->bytes, length, local->mr->lkey};
    struct ibv_send_wr *refused;
    request->wr_id = ++end->sends;
    if (!request->sg_list && length) {
        request->sg_list = &piece;
        request->num_sge = 1;
    }
    int result = ibv_post_send(end->qp, request, &refused);
    if (request->sg_list == &piece)
        request->sg_list = NULL;
    return result;
}

int post_send(struct end *end, int length) {
    struct ibv_send_wr request = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    return post(end, &request, length);
}

int post_silent(struct end *end, int length) {
    struct ibv_send_wr request = {.opcode = IBV_WR_SEND};
    return post(end, &request, length);
}

static int post_to(struct end *end, enum ibv_wr_opcode opcode, const struct area *area, int offset,
                   int length) {
    struct ibv_send_wr request = {.opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    request.wr.rdma.remote_addr = (uintptr_t)area->bytes + offset;
    request.wr.rdma.rkey = area->mr->rkey;
    return post(end, &request, length);
}

int post_write(struct end *end, const struct area *area, int offset, int length) {
    return post_to(end, IBV_WR_RDMA_WRITE, area, offset, length);
}

int post_read(struct end *end, const struct area *area, int offset, int length) {
    return post_to(end, IBV_WR_RDMA_READ, area, offset, length);
}

int post_receive(struct end *end, int length) {
    struct ibv_sge piece = {(uintptr_t)inbox.bytes, length, inbox.mr->lkey};
    struct ibv_recv_wr request = {
        .wr_id = RECEIVES + ++end->receives, .sg_list = &piece, .num_sge = 1}, *refused;
    return ibv_post_recv(end->qp, &request, &refused);
}

int post_shared(struct ibv_srq *srq, unsigned number, int length) {
    struct ibv_sge piece = {(uintptr_t)inbox.bytes, length, inbox.mr->lkey};
    struct ibv_recv_wr request = {.wr_id = RECEIVES + number, .sg_list = &piece, .num_sge = 1},
                       *refused;
    return ibv_post_srq_recv(srq, &request, &refused);
}
