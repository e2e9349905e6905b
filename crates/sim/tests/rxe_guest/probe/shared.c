// T9: a shared receive queue, its limit, and the event Last WQE Reached.
#include "rig.h"

static struct ibv_srq *shared_new(int receives) {
    struct ibv_srq_init_attr made = {.attr = {.max_wr = 16, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(domain, &made);
    must(srq, "ibv_create_srq");
    for (int i = 1; i <= receives; i++)
        must(!post_shared(srq, i, 64), "ibv_post_srq_recv");
    return srq;
}

static int arm(struct ibv_srq *srq, int limit) {
    struct ibv_srq_attr to = {.srq_limit = limit};
    return ibv_modify_srq(srq, &to, IBV_SRQ_LIMIT);
}

static int limit_of(struct ibv_srq *srq) {
    struct ibv_srq_attr now;
    must(!ibv_query_srq(srq, &now), "ibv_query_srq");
    return now.srq_limit;
}

static void messages(struct end *from, struct end *to, int count, int events) {
    for (int i = 0; i < count; i++)
        post_send(from, 8);
    watch(from, from->logged + count, to, to->logged + count, events);
}

static void limits(void) {
    struct ibv_srq *srq = shared_new(10);
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){.srq = srq});
    join(&a, &b);
    line("T9 limit 7 of ten");
    field("armed=%d", arm(srq, 7));
    messages(&a, &b, 3, 0);
    field("left=7");
    put_events();
    messages(&a, &b, 1, 1);
    field("left=6");
    put_events();
    field("limit=%d", limit_of(srq));
    messages(&a, &b, 1, 0);
    field("left=5");
    put_events();
    line_end();
    line("T9 limit 5 of five, armed again");
    field("armed=%d", arm(srq, 5));
    watch(NULL, 0, NULL, 0, 0);
    field("left=5");
    put_events();
    messages(&a, &b, 1, 1);
    field("left=4");
    put_events();
    line_end();
    line("T9 limit 8 of four");
    field("armed=%d", arm(srq, 8));
    watch(NULL, 0, NULL, 0, 0);
    field("left=4");
    put_events();
    messages(&a, &b, 1, 1);
    field("left=3");
    put_events();
    line_end();
    line("T9 limit above the queue's size");
    field("armed=%d", arm(srq, 1000));
    line_end();
    line("T9 messages into a shared queue");
    put_sends(&a);
    put_receives(&b);
    line_end();
    end_free(&a);
    end_free(&b);
    must(!ibv_destroy_srq(srq), "ibv_destroy_srq");
}

static void last_request(void) {
    struct ibv_srq *srq = shared_new(4);
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){.srq = srq});
    join(&a, &b);
    watch(NULL, 0, NULL, 0, 0);
    line("T9 last request, connected and idle");
    put_events();
    line_end();
    must(!to_state(&b, IBV_QPS_ERR), "to ERR");
    watch(NULL, 0, NULL, 0, 1);
    line("T9 last request, to ERR with four receives in the queue");
    put_events();
    put_receives(&b);
    line_end();
    line("T9 last request, from ERR to ERR");
    field("modify=%d", to_state(&b, IBV_QPS_ERR));
    watch(NULL, 0, NULL, 0, 1);
    put_events();
    line_end();
    line("T9 last request, a send posted in ERR");
    field("post=%d", post_send(&b, 0));
    watch(&b, 1, NULL, 0, 1);
    put_sends(&b);
    put_events();
    line_end();
    must(!ibv_destroy_qp(b.qp), "ibv_destroy_qp");
    b.qp = NULL;
    watch(NULL, 0, NULL, 0, 0);
    line("T9 last request, destroyed");
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);

    a = end_new((struct shape){0});
    b = end_new((struct shape){.srq = srq});
    join(&a, &b);
    messages(&a, &b, 4, 0);
    line("T9 the four receives serve another queue pair");
    put_sends(&a);
    put_receives(&b);
    put_events();
    line_end();
    must(!to_state(&b, IBV_QPS_ERR), "to ERR");
    watch(NULL, 0, NULL, 0, 1);
    line("T9 last request, to ERR after the queue was used up");
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);

    b = end_new((struct shape){.srq = srq});
    reach(&b, NOBODY, &usual);
    must(!to_state(&b, IBV_QPS_ERR), "to ERR");
    watch(NULL, 0, NULL, 0, 1);
    line("T9 last request, to ERR with nothing in the queue");
    put_events();
    line_end();
    end_free(&b);

    // The transport moves it to ERR here, not its owner.
    must(!post_shared(srq, 5, 8), "ibv_post_srq_recv");
    must(!post_shared(srq, 6, 8), "ibv_post_srq_recv");
    a = end_new((struct shape){0});
    b = end_new((struct shape){.srq = srq});
    join(&a, &b);
    post_send(&a, 64);
    watch(&a, 1, &b, 1, 1);
    line("T9 last request, a message that is too long");
    put_sends(&a);
    put_receives(&b);
    put_state("receiver", &b);
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);
    must(!ibv_destroy_srq(srq), "ibv_destroy_srq");
}

void probe_shared(void) {
    limits();
    last_request();
}
