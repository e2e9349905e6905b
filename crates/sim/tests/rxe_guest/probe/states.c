// T12: which posts and which changes of state are accepted in which state.
#include "rig.h"

static const enum ibv_qp_state all[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
                                        IBV_QPS_SQD,   IBV_QPS_SQE,  IBV_QPS_ERR};
enum { STATES = sizeof all / sizeof all[0] };

// What each state requires when it comes from the one before it.
static int go(struct end *end, enum ibv_qp_state state) {
    switch (state) {
    case IBV_QPS_INIT:
        return to_init(end, ALL_ACCESS);
    case IBV_QPS_RTR:
        return to_rtr(end, NOBODY);
    case IBV_QPS_RTS:
        // From the states behind RTS, and from itself, nothing but the state is needed.
        return state_of(end) == IBV_QPS_RTS || state_of(end) == IBV_QPS_SQD ||
                       state_of(end) == IBV_QPS_SQE
                   ? to_state(end, state)
                   : to_rts(end, &usual);
    default:
        return to_state(end, state);
    }
}

// A queue pair cannot be put into SQE by its owner: no probe starts there.
static struct end fresh(enum ibv_qp_state state) {
    struct end end = end_new((struct shape){0});
    if (state >= IBV_QPS_INIT)
        must(!go(&end, IBV_QPS_INIT), "to INIT");
    if (state >= IBV_QPS_RTR && state != IBV_QPS_ERR)
        must(!go(&end, IBV_QPS_RTR), "to RTR");
    if (state >= IBV_QPS_RTS && state != IBV_QPS_ERR)
        must(!go(&end, IBV_QPS_RTS), "to RTS");
    if (state == IBV_QPS_SQD)
        must(!go(&end, IBV_QPS_SQD), "to SQD");
    if (state == IBV_QPS_ERR)
        must(!go(&end, IBV_QPS_ERR), "to ERR");
    return end;
}

static void transitions(void) {
    for (int from = 0; from < STATES; from++) {
        if (all[from] == IBV_QPS_SQE)
            continue;
        line("T12 from %s to", state_name(all[from]));
        bool kept = true;
        for (int to = 0; to < STATES; to++) {
            struct end end = fresh(all[from]);
            int result = go(&end, all[to]);
            field("%s=%d", state_name(all[to]), result);
            enum ibv_qp_state expected = result ? all[from] : all[to];
            kept &= state_of(&end) == expected;
            end_free(&end);
        }
        field("consistent=%s", kept ? "yes" : "no");
        line_end();
    }
    watch(NULL, 0, NULL, 0, 0);
    line("T12 events of all those changes");
    put_events();
    line_end();
}

static void masks(void) {
    struct end end = fresh(IBV_QPS_RESET);
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    line("T12 to INIT without its access flags");
    field("modify=%d",
          ibv_modify_qp(end.qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
    put_state("state", &end);
    line_end();
    line("T12 to INIT with a retry count");
    field("modify=%d", ibv_modify_qp(end.qp, &to,
                                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                         IBV_QP_ACCESS_FLAGS | IBV_QP_RETRY_CNT));
    put_state("state", &end);
    line_end();
    line("T12 to INIT on port 2 of 1");
    to.port_num = 2;
    field("modify=%d", ibv_modify_qp(end.qp, &to,
                                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                         IBV_QP_ACCESS_FLAGS));
    put_state("state", &end);
    line_end();
    end_free(&end);

    end = fresh(IBV_QPS_RTR);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 3};
    line("T12 to RTS without a sequence number");
    field("modify=%d", ibv_modify_qp(end.qp, &to,
                                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                         IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
    put_state("state", &end);
    line_end();
    end_free(&end);
}

static void posts(void) {
    for (int i = 0; i < STATES; i++) {
        if (all[i] == IBV_QPS_SQE)
            continue;
        struct end end = fresh(all[i]);
        line("T12 posts in %s", state_name(all[i]));
        field("send=%d", post_send(&end, 8));
        field("receive=%d", post_receive(&end, 8));
        watch(&end, all[i] == IBV_QPS_ERR ? 1 : 0, NULL, 0, 0);
        put_sends(&end);
        put_receives(&end);
        // Then everything that is posted, and maybe what was refused, is flushed.
        if (all[i] != IBV_QPS_RESET && all[i] != IBV_QPS_ERR) {
            end.logged = 0;
            must(!to_state(&end, IBV_QPS_ERR), "to ERR");
            watch(&end, 1, NULL, 0, 0);
            field("then in ERR");
            put_sends(&end);
            put_receives(&end);
        }
        line_end();
        end_free(&end);
    }
    // Which of the two lets the other go?
    for (int i = 0; i < 2; i++) {
        struct end end = fresh(IBV_QPS_ERR);
        line("T12 posts in ERR, a %s first", i ? "send" : "receive");
        field("post=%d", i ? post_send(&end, 8) : post_receive(&end, 8));
        watch(&end, i, NULL, 0, 0);
        put_sends(&end);
        put_receives(&end);
        field("then post=%d", i ? post_receive(&end, 8) : post_send(&end, 8));
        pause_ms(100);
        watch(&end, i ? 1 : 2, NULL, 0, 0);
        put_sends(&end);
        put_receives(&end);
        line_end();
        end_free(&end);
    }
    watch(NULL, 0, NULL, 0, 0);
    line("T12 events of all those posts");
    put_events();
    line_end();
}

// A send that is refused before RTS: is it forgotten?
static void refused_sends(void) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    must(!to_init(&a, ALL_ACCESS), "to INIT");
    line("T12 a send refused in INIT");
    field("post=%d", post_send(&a, 8));
    must(!to_rtr(&a, b.qp->qp_num), "to RTR");
    must(!to_rts(&a, &usual), "to RTS");
    reach(&b, a.qp->qp_num, &usual);
    for (int i = 0; i < 3; i++)
        post_receive(&b, 8);
    watch(&a, 0, &b, 0, 0);
    field("then in RTS");
    put_sends(&a);
    put_receives(&b);
    line_end();
    line("T12 a send after one that was refused in INIT");
    field("post=%d", post_send(&a, 8));
    watch(&a, 2, &b, 2, 0);
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    line_end();
    end_free(&a);
    end_free(&b);

    a = end_new((struct shape){0});
    b = end_new((struct shape){0});
    line("T12 a send after one that was refused in RESET");
    field("refused=%d", post_send(&a, 8));
    join(&a, &b);
    for (int i = 0; i < 3; i++)
        post_receive(&b, 8);
    field("post=%d", post_send(&a, 8));
    watch(&a, 2, &b, 2, 0);
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    line_end();
    end_free(&a);
    end_free(&b);
}

static void draining(void) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join(&a, &b);
    for (int i = 0; i < 3; i++)
        post_receive(&b, 8);
    post_send(&a, 8);
    watch(&a, 1, &b, 1, 0);
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    line("T12 to SQD with nothing outstanding");
    field("modify=%d", ibv_modify_qp(a.qp, &to, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    watch(NULL, 0, NULL, 0, 1);
    put_state("state", &a);
    put_events();
    line_end();
    line("T12 to SQD once more, without notification");
    field("modify=%d", to_state(&a, IBV_QPS_SQD));
    watch(NULL, 0, NULL, 0, 1);
    put_events();
    line_end();
    line("T12 a send in SQD");
    field("post=%d", post_send(&a, 8));
    watch(&a, 1, &b, 1, 0);
    put_sends(&a);
    put_receives(&b);
    line_end();
    line("T12 back from SQD to RTS");
    field("modify=%d", to_state(&a, IBV_QPS_RTS));
    // rxe does not take up the send again before the next one: no reason to hope for long.
    pause_ms(500);
    watch(&a, 1, &b, 1, 0);
    put_sends(&a);
    put_receives(&b);
    put_state("state", &a);
    line_end();
    line("T12 a send after that");
    field("post=%d", post_send(&a, 8));
    watch(&a, 3, &b, 3, 0);
    put_sends(&a);
    put_receives(&b);
    line_end();
    end_free(&a);
    end_free(&b);
}

void probe_states(void) {
    transitions();
    masks();
    posts();
    refused_sends();
    draining();
}
