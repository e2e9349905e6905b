// T13: atomics, immediate numbers, inline data, keys that end.
#include "rig.h"

#include <arpa/inet.h>
#include <string.h>

static struct end a, b;
static struct area target;

static void begin(int region, int queue_pair) {
    struct tune tune = usual;
    tune.access = queue_pair;
    a = end_new((struct shape){0});
    b = end_new((struct shape){0});
    join_tuned(&a, &b, &tune);
    target = area_new(domain, 4096, region);
    memset(inbox.bytes, 0, AREA);
}

static void finish(void) {
    put_sends(&a);
    put_receives(&b);
    put_state("requester", &a);
    put_state("responder", &b);
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);
    area_free(&target);
    memset(inbox.bytes, 0, AREA);
}

static int post_atomic(enum ibv_wr_opcode opcode, int offset, uint64_t first, uint64_t second) {
    struct ibv_send_wr request = {.opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    request.wr.atomic.remote_addr = (uintptr_t)target.bytes + offset;
    request.wr.atomic.rkey = target.mr->rkey;
    request.wr.atomic.compare_add = first;
    request.wr.atomic.swap = second;
    return post(&a, &request, 8);
}

static void put_word(const char *name, const struct area *area) {
    uint64_t word;
    memcpy(&word, area->bytes, sizeof word);
    field("%s=%llu", name, (unsigned long long)word);
}

static void atomic(const char *name, int region, int queue_pair, int offset,
                   enum ibv_wr_opcode opcode, uint64_t first, uint64_t second) {
    begin(region, queue_pair);
    uint64_t word = 1000;
    memcpy(target.bytes, &word, sizeof word);
    line("T13 %s", name);
    field("post=%d", post_atomic(opcode, offset, first, second));
    watch(&a, 1, &b, 0, 0);
    put_word("was", &inbox);
    put_word("is", &target);
    finish();
}

static void atomics(void) {
    const int no_atomic = ALL_ACCESS & ~IBV_ACCESS_REMOTE_ATOMIC;
    const enum ibv_wr_opcode swap = IBV_WR_ATOMIC_CMP_AND_SWP, add = IBV_WR_ATOMIC_FETCH_AND_ADD;
    atomic("compare and swap, equal", ALL_ACCESS, ALL_ACCESS, 0, swap, 1000, 7);
    atomic("compare and swap, not equal", ALL_ACCESS, ALL_ACCESS, 0, swap, 1001, 7);
    atomic("fetch and add", ALL_ACCESS, ALL_ACCESS, 0, add, 5, 0);
    atomic("fetch and add, past the largest number", ALL_ACCESS, ALL_ACCESS, 0, add,
           UINT64_MAX - 998, 0);
    atomic("fetch and add, not a multiple of eight", ALL_ACCESS, ALL_ACCESS, 4, add, 5, 0);
    atomic("fetch and add behind the region", ALL_ACCESS, ALL_ACCESS, 8192, add, 5, 0);
    atomic("fetch and add that the region forbids", no_atomic, ALL_ACCESS, 0, add, 5, 0);
    atomic("fetch and add that the queue pair forbids", ALL_ACCESS, no_atomic, 0, add, 5, 0);

    begin(ALL_ACCESS, ALL_ACCESS);
    for (int i = 0; i < QUEUE; i++)
        post_atomic(add, 0, 1, 0);
    watch(&a, QUEUE, &b, 0, 0);
    line("T13 fetch and add, eight at once");
    put_word("was", &inbox);
    put_word("is", &target);
    finish();

    // The answer has no place to go: is the request executed all the same?
    begin(ALL_ACCESS, ALL_ACCESS);
    struct ibv_sge nowhere = {(uintptr_t)inbox.bytes, 8, inbox.mr->lkey ^ 0x5a5a00};
    struct ibv_send_wr request = {.opcode = add, .send_flags = IBV_SEND_SIGNALED,
                                  .sg_list = &nowhere, .num_sge = 1};
    request.wr.atomic.remote_addr = (uintptr_t)target.bytes;
    request.wr.atomic.rkey = target.mr->rkey;
    request.wr.atomic.compare_add = 5;
    line("T13 fetch and add into a local key that nobody has");
    field("post=%d", post(&a, &request, 8));
    watch(&a, 1, &b, 0, 0);
    put_word("was", &inbox);
    put_word("is", &target);
    finish();
}

static void immediate(const char *name, int region, enum ibv_wr_opcode opcode, int length,
                      bool receive) {
    begin(region, ALL_ACCESS);
    if (receive)
        post_receive(&b, 64);
    struct ibv_send_wr request = {
        .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0x12345678)};
    request.wr.rdma.remote_addr = (uintptr_t)target.bytes;
    request.wr.rdma.rkey = target.mr->rkey;
    post(&a, &request, length);
    watch(&a, 1, &b, receive, 0);
    line("T13 %s", name);
    field("bytes=%d",
          area_written(opcode == IBV_WR_SEND_WITH_IMM ? &inbox : &target));
    if (b.logged && !b.log[0].status) {
        field("received=%u", b.log[0].byte_len);
        field("kind=%s", b.log[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM ? "write" : "send");
        if (b.log[0].wc_flags & IBV_WC_WITH_IMM)
            field("immediate=%x", ntohl(b.log[0].imm_data));
    }
    finish();
}

static void inlined(const char *name, int length) {
    begin(ALL_ACCESS, ALL_ACCESS);
    post_receive(&b, 64);
    // No key is looked at, and the bytes are taken when it is posted.
    char bytes[1024];
    memcpy(bytes, source.bytes, sizeof bytes);
    struct ibv_sge piece = {(uintptr_t)bytes, length, 0};
    struct ibv_send_wr request = {.opcode = IBV_WR_SEND,
                                  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                                  .sg_list = &piece,
                                  .num_sge = 1};
    int result = post(&a, &request, length);
    memset(bytes, 0, sizeof bytes);
    watch(&a, !result, &b, !result, 0);
    line("T13 %s", name);
    field("post=%d bytes=%d", result, area_written(&inbox));
    finish();
}

static int post_ending(struct end *end, enum ibv_wr_opcode opcode, uint32_t key) {
    struct ibv_send_wr request = {.opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
                                  .invalidate_rkey = key};
    return post(end, &request, 0);
}

static void keys_of_regions(void) {
    begin(ALL_ACCESS, ALL_ACCESS);
    post_receive(&b, 64);
    line("T13 send with invalidate, the key of a region");
    field("post=%d", post_ending(&a, IBV_WR_SEND_WITH_INV, target.mr->rkey));
    watch(&a, 1, &b, 1, 0);
    finish();

    begin(ALL_ACCESS, ALL_ACCESS);
    post_receive(&b, 64);
    line("T13 send with invalidate, a key that nobody has");
    field("post=%d", post_ending(&a, IBV_WR_SEND_WITH_INV, target.mr->rkey ^ 0x5a5a00));
    watch(&a, 1, &b, 1, 0);
    finish();

    begin(ALL_ACCESS, ALL_ACCESS);
    line("T13 local invalidate, the key of a region");
    field("post=%d", post_ending(&a, IBV_WR_LOCAL_INV, target.mr->rkey));
    watch(&a, 1, &b, 0, 0);
    finish();
}

// A window of type 2 on `target`, bound by `b`.
static struct ibv_mw *bind_window(void) {
    struct ibv_mw *window = ibv_alloc_mw(domain, IBV_MW_TYPE_2);
    must(window, "ibv_alloc_mw");
    struct ibv_send_wr request = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
    request.bind_mw.mw = window;
    request.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    request.bind_mw.bind_info.mr = target.mr;
    request.bind_mw.bind_info.addr = (uintptr_t)target.bytes;
    request.bind_mw.bind_info.length = 4096;
    request.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
    must(!post(&b, &request, 0), "post of a bind");
    window->rkey = request.bind_mw.rkey;
    watch(&b, 1, NULL, 0, 0);
    return window;
}

static void write_by_window(struct ibv_mw *window) {
    struct ibv_send_wr request = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    request.wr.rdma.remote_addr = (uintptr_t)target.bytes;
    request.wr.rdma.rkey = window->rkey;
    post(&a, &request, 64);
}

static void windows(void) {
    for (int remote = 0; remote < 2; remote++) {
        begin(ALL_ACCESS | IBV_ACCESS_MW_BIND, ALL_ACCESS);
        struct ibv_mw *window = bind_window();
        line("T13 a window that its %s ends", remote ? "user" : "owner");
        field("bound=%d", b.logged ? (int)b.log[0].status : -1);
        write_by_window(window);
        watch(&a, 1, &b, 0, 0);
        field("bytes=%d", area_written(&target));
        memset(target.bytes, 0, AREA);
        if (remote) {
            post_receive(&b, 64);
            field("post=%d", post_ending(&a, IBV_WR_SEND_WITH_INV, window->rkey));
            watch(&a, 2, &b, 2, 0);
            field("key=%s", b.log[1].invalidated_rkey == window->rkey ? "told" : "not-told");
            field("flag=%s", b.log[1].wc_flags & IBV_WC_WITH_INV ? "set" : "not-set");
        } else {
            field("post=%d", post_ending(&b, IBV_WR_LOCAL_INV, window->rkey));
            watch(&b, 2, NULL, 0, 0);
            field("ended=%d", b.logged > 1 ? (int)b.log[1].status : -1);
        }
        write_by_window(window);
        watch(&a, remote ? 3 : 2, &b, 0, 0);
        field("bytes=%d", area_written(&target));
        must(!ibv_dealloc_mw(window), "ibv_dealloc_mw");
        finish();
    }
}

void probe_operations(void) {
    atomics();
    const int all = ALL_ACCESS, no_write = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    const enum ibv_wr_opcode send = IBV_WR_SEND_WITH_IMM, write = IBV_WR_RDMA_WRITE_WITH_IMM;
    immediate("send with immediate", all, send, 8, true);
    immediate("send of no bytes with immediate", all, send, 0, true);
    immediate("write with immediate", all, write, 2 * MTU, true);
    immediate("write of no bytes with immediate", all, write, 0, true);
    immediate("write with immediate, no receive", all, write, 8, false);
    // What becomes of the receive that a refused one would take?
    immediate("write with immediate that the region forbids", no_write, write, 8, true);
    immediate("write of two packets with immediate that the region forbids", no_write, write,
              2 * MTU, true);
    immediate("write with immediate that the region forbids, no receive", no_write, write, 8,
              false);
    inlined("inline data", 64);
    inlined("inline data, too much", 1024);
    keys_of_regions();
    windows();
}
