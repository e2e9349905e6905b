// T5 and T6: one-sided requests that are refused, and what they have done until then.
#include "rig.h"

#include <string.h>

static struct area target;
static struct tune tune;

static void begin(void) {
    target = area_new(domain, 4096, ALL_ACCESS);
    tune = usual;
}

// One WRITE or READ, with a SEND behind it and a receive that this one would take.
static void attempt(const char *number, const char *name, bool reads, uint32_t key_change,
                    int offset, int length) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join_tuned(&a, &b, &tune);
    memset(inbox.bytes, 0, AREA);
    if (reads)
        memcpy(target.bytes, source.bytes, AREA);
    post_receive(&b, 64);
    struct ibv_send_wr request = {.opcode = reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                                  .send_flags = IBV_SEND_SIGNALED};
    request.wr.rdma.remote_addr = (uintptr_t)target.bytes + offset;
    request.wr.rdma.rkey = (target.mr ? target.mr->rkey : 0) ^ key_change;
    post(&a, &request, length);
    post_send(&a, 0);
    watch(&a, 2, &b, 1, 0);
    line("%s %s %s", number, reads ? "read" : "write", name);
    put_sends(&a);
    put_receives(&b);
    put_state("requester", &a);
    put_state("responder", &b);
    field("bytes=%d", area_written(reads ? &inbox : &target));
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);
    memset(inbox.bytes, 0, AREA);
    area_free(&target);
    begin();
}

static void register_again(struct ibv_pd *pd, int length, int access) {
    area_free(&target);
    target = area_new(pd, length, access);
}

static void each_kind(bool reads) {
    int other = IBV_ACCESS_LOCAL_WRITE | (reads ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ);
    attempt("T5", "allowed", reads, 0, 0, 64);
    attempt("T5", "with a key that nobody has", reads, 0x5a5a00, 0, 64);
    attempt("T5", "with another variant of the key", reads, 1, 0, 64);
    attempt("T5", "that starts before the region", reads, 0, -8, 64);
    attempt("T5", "that ends behind the region", reads, 0, 4096 - 32, 64);
    attempt("T5", "behind the region", reads, 0, 8192, 64);
    register_again(domain, 4096, other);
    attempt("T5", "that the region forbids", reads, 0, 0, 64);
    tune.access = other;
    attempt("T5", "that the queue pair forbids", reads, 0, 0, 64);
    tune.access = other;
    attempt("T5", "that the queue pair forbids, with a key that nobody has", reads, 0x5a5a00, 0,
            64);
    struct ibv_pd *elsewhere = ibv_alloc_pd(device);
    must(elsewhere, "ibv_alloc_pd");
    register_again(elsewhere, 4096, ALL_ACCESS);
    attempt("T5", "of another protection domain's region", reads, 0, 0, 64);
    must(!ibv_dealloc_pd(elsewhere), "ibv_dealloc_pd");
    uint32_t gone = target.mr->rkey;
    must(!ibv_dereg_mr(target.mr), "ibv_dereg_mr");
    target.mr = NULL;
    attempt("T5", "with the key of a region that is gone", reads, gone, 0, 64);
    attempt("T5", "of no bytes with a key that nobody has", reads, 0x5a5a00, 0, 0);
    attempt("T5", "of no bytes behind the region", reads, 0, 8192, 0);
    tune.access = other;
    attempt("T5", "of no bytes that the queue pair forbids", reads, 0, 0, 0);
}

void probe_refused(void) {
    begin();
    each_kind(false);
    each_kind(true);
    area_free(&target);
}

void probe_partial(void) {
    begin();
    for (int reads = 0; reads < 2; reads++) {
        attempt("T6", "of four packets", reads, 0, 0, 4 * MTU);
        attempt("T6", "of two packets and a byte", reads, 0, 0, 2 * MTU + 1);
        register_again(domain, 2 * MTU, ALL_ACCESS);
        attempt("T6", "of four packets, the region has two", reads, 0, 0, 4 * MTU);
        register_again(domain, 4 * MTU - 8, ALL_ACCESS);
        attempt("T6", "of four packets, the region lacks eight bytes", reads, 0, 0, 4 * MTU);
    }
    area_free(&target);
}
