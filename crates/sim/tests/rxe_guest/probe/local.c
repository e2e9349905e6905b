// T11: requests whose own memory is wrong.
#include "rig.h"

static int post_with_key(struct end *end, uint32_t key, int offset, int length) {
    struct ibv_sge piece = {(uintptr_t)source.bytes + offset, length, key};
    struct ibv_send_wr request = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
                                  .sg_list = &piece, .num_sge = 1};
    return post(end, &request, length);
}

static void put_pair(struct end *a, struct end *b) {
    put_sends(a);
    put_receives(b);
    put_state("sender", a);
    put_state("receiver", b);
    put_events();
    line_end();
}

static void sends(void) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join(&a, &b);
    post_receive(&b, 64);
    line("T11 a send with a local key that nobody has");
    field("post=%d", post_with_key(&a, source.mr->lkey ^ 0x5a5a00, 0, 8));
    watch(&a, 1, &b, 0, 0);
    put_pair(&a, &b);
    end_free(&a);
    end_free(&b);

    a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join(&a, &b);
    post_receive(&b, 64);
    line("T11 a send that ends behind its region");
    field("post=%d", post_with_key(&a, source.mr->lkey, AREA - 4, 8));
    watch(&a, 1, &b, 0, 0);
    put_pair(&a, &b);
    end_free(&a);
    end_free(&b);

    a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join(&a, &b);
    post_receive(&b, 64);
    post_receive(&b, 64);
    post_send(&a, 8);
    watch(&a, 1, &b, 1, 0);
    post_with_key(&a, source.mr->lkey ^ 0x5a5a00, 0, 8);
    post_send(&a, 8);
    watch(&a, 3, &b, 1, 0);
    line("T11 a good send that has completed, a bad one, a good one");
    put_pair(&a, &b);
    end_free(&a);
    end_free(&b);

    // The first may or may not be acknowledged before the second is looked at.
    a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join(&a, &b);
    post_receive(&b, 64);
    post_receive(&b, 64);
    post_send(&a, 8);
    post_with_key(&a, source.mr->lkey ^ 0x5a5a00, 0, 8);
    post_send(&a, 8);
    watch(&a, 3, &b, 1, 0);
    line("T11 a good send, a bad one, a good one at once");
    put_pair(&a, &b);
    end_free(&a);
    end_free(&b);
}

static void receives(const char *name, struct area *into, uint32_t key_change) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join(&a, &b);
    struct ibv_sge piece = {(uintptr_t)into->bytes, 64, into->mr->lkey ^ key_change};
    struct ibv_recv_wr request = {.wr_id = RECEIVES + ++b.receives, .sg_list = &piece,
                                  .num_sge = 1}, *refused;
    line("T11 %s", name);
    field("post=%d", ibv_post_recv(b.qp, &request, &refused));
    post_receive(&b, 64);
    post_send(&a, 8);
    watch(&a, 1, &b, 2, 0);
    put_pair(&a, &b);
    end_free(&a);
    end_free(&b);
}

static void reads(const char *name, struct area *into, uint32_t key_change) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    struct area target = area_new(domain, 4096, ALL_ACCESS);
    join(&a, &b);
    struct ibv_sge piece = {(uintptr_t)into->bytes, 64, into->mr->lkey ^ key_change};
    struct ibv_send_wr request = {.opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
                                  .sg_list = &piece, .num_sge = 1};
    request.wr.rdma.remote_addr = (uintptr_t)target.bytes;
    request.wr.rdma.rkey = target.mr->rkey;
    line("T11 %s", name);
    field("post=%d", post(&a, &request, 64));
    watch(&a, 1, &b, 0, 0);
    put_pair(&a, &b);
    end_free(&a);
    end_free(&b);
    area_free(&target);
}

void probe_local(void) {
    struct area constant = area_new(domain, 4096, 0);
    sends();
    receives("a receive with a local key that nobody has", &inbox, 0x5a5a00);
    receives("a receive into memory that may only be read", &constant, 0);
    reads("a read with a local key that nobody has", &inbox, 0x5a5a00);
    reads("a read into memory that may only be read", &constant, 0);
    area_free(&constant);
}
