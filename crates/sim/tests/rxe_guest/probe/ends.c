// T10: what is left of a queue pair that ends, and how its peer learns of it.
#include "rig.h"

enum way { DESTROYED, ERRED, WENT_RESET };

static void leave(struct end *end, enum way way) {
    if (way == ERRED)
        must(!to_state(end, IBV_QPS_ERR), "to ERR");
    if (way == WENT_RESET)
        must(!to_state(end, IBV_QPS_RESET), "to RESET");
    if (way == DESTROYED) {
        must(!ibv_destroy_qp(end->qp), "ibv_destroy_qp");
        end->qp = NULL;
    }
}

// Two sends that nobody answers and three receives.
static struct end busy(void) {
    struct end a = end_new((struct shape){0});
    struct tune never = usual;
    never.timeout = 20;
    reach(&a, NOBODY, &never);
    for (int i = 0; i < 3; i++)
        post_receive(&a, 8);
    for (int i = 0; i < 2; i++)
        post_send(&a, 8);
    return a;
}

static void own_end(void) {
    struct end a = busy();
    leave(&a, ERRED);
    watch(&a, 5, NULL, 0, 0);
    line("T10 to ERR with two sends and three receives");
    put_sends(&a);
    put_receives(&a);
    put_events();
    line_end();
    end_free(&a);

    a = busy();
    leave(&a, DESTROYED);
    watch(&a, 0, NULL, 0, 0);
    line("T10 destroyed with two sends and three receives");
    put_sends(&a);
    put_receives(&a);
    put_events();
    line_end();
    end_free(&a);

    a = busy();
    leave(&a, WENT_RESET);
    watch(&a, 0, NULL, 0, 0);
    line("T10 to RESET with two sends and three receives");
    put_sends(&a);
    put_receives(&a);
    line_end();
    leave(&a, DESTROYED);
    end_free(&a);

    static const char *names[] = {"destroyed", "", "to RESET"};
    for (int way = DESTROYED; way <= WENT_RESET; way += WENT_RESET) {
        a = busy();
        leave(&a, ERRED);
        pause_ms(100);
        leave(&a, way);
        watch(&a, 0, NULL, 0, 0);
        line("T10 %s with five flushed completions not polled", names[way]);
        put_sends(&a);
        put_receives(&a);
        line_end();
        end_free(&a);
    }

    a = end_new((struct shape){0});
    struct end b = end_new((struct shape){0});
    join(&a, &b);
    post_receive(&b, 8);
    post_send(&a, 8);
    watch(NULL, 0, &b, 1, 0);
    leave(&a, DESTROYED);
    watch(&a, 0, NULL, 0, 0);
    line("T10 destroyed with a good send's completion not polled");
    put_sends(&a);
    line_end();
    end_free(&a);
    end_free(&b);
}

static void peer_end(const char *name, enum ibv_qp_state state, bool destroyed) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    reach(&a, b.qp->qp_num, &usual);
    if (state != IBV_QPS_RESET)
        must(!to_init(&b, ALL_ACCESS), "to INIT");
    if (state >= IBV_QPS_RTR)
        must(!to_rtr(&b, a.qp->qp_num), "to RTR");
    if (state >= IBV_QPS_RTS)
        must(!to_rts(&b, &usual), "to RTS");
    if (state != IBV_QPS_RESET)
        post_receive(&b, 8);
    if (destroyed)
        leave(&b, DESTROYED);
    else if (state == IBV_QPS_ERR)
        leave(&b, ERRED);
    post_send(&a, 8);
    watch(&a, 1, &b, 0, 0);
    line("T10 the peer %s", name);
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);
}

void probe_ends(void) {
    own_end();
    peer_end("is destroyed", IBV_QPS_RTS, true);
    peer_end("is in ERR", IBV_QPS_ERR, false);
    peer_end("is in RESET", IBV_QPS_RESET, false);
    peer_end("is in INIT", IBV_QPS_INIT, false);
    peer_end("is in RTR", IBV_QPS_RTR, false);

    // Objects that come and go: what is left over would make a later creation fail.
    int round = 0;
    for (; round < 200; round++) {
        struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
        join(&a, &b);
        post_receive(&b, 8);
        leave(&b, ERRED);
        leave(&a, ERRED);
        end_free(&a);
        end_free(&b);
    }
    line("T10 two hundred pairs that come and go");
    field("made=%d", round);
    put_events();
    line_end();
}
