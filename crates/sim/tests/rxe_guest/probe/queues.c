// T7 and T8: queues that are full, and a completion queue that runs over.
#include "rig.h"

void probe_slots(void) {
    struct end a = end_new((struct shape){.silent = true}), b = end_new((struct shape){0});
    join(&a, &b);
    for (int i = 0; i < 8; i++)
        post_receive(&b, 64);
    for (int i = 0; i < 7; i++)
        post_silent(&a, 8);
    post_send(&a, 8);
    watch(&a, 1, &b, 8, 0);
    line("T7 seven silent sends and one that completes");
    put_sends(&a);
    put_receives(&b);
    line_end();

    // Nothing is polled at the sender, because nothing completes there.
    int accepted = 0;
    for (; accepted < 4 * QUEUE; accepted++) {
        post_receive(&b, 64);
        if (post_silent(&a, 8))
            break;
        watch(NULL, 0, &b, b.logged + 1, 0);
    }
    line("T7 silent sends one by one, four times the queue's depth");
    field("accepted=%s", accepted == 4 * QUEUE ? "all" : accepted < QUEUE ? "few" : "depth");
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);

    // It must not give up while it is being filled.
    struct tune patient = usual;
    patient.timeout = 20;
    a = end_new((struct shape){.sends = 2, .receives = 2, .silent = true});
    reach(&a, NOBODY, &patient);
    int refused = 0;
    for (accepted = 0; !(refused = post_silent(&a, 8)) && accepted < 64;)
        accepted++;
    line("T7 sends to nobody, depth 2");
    field("accepted=%d refused=%d", accepted, refused);
    line_end();
    for (accepted = 0; !(refused = post_receive(&a, 8)) && accepted < 64;)
        accepted++;
    line("T7 receives, depth 2");
    field("accepted=%d refused=%d", accepted, refused);
    line_end();
    end_free(&a);
}

static void overrun_of_receives(void) {
    struct ibv_cq *small = ibv_create_cq(device, 1, NULL, NULL, 0);
    must(small, "ibv_create_cq");
    struct end a = end_new((struct shape){.receives = 40, .cq = small});
    reach(&a, NOBODY, &usual);
    for (int i = 0; i < 40; i++)
        post_receive(&a, 8);
    // Not polled before everything has been flushed.
    must(!to_state(&a, IBV_QPS_ERR), "to ERR");
    pause_ms(100);
    watch(NULL, 0, NULL, 0, 1);
    line("T8 forty flushed receives, room for one");
    field("room=%d", small->cqe);
    put_events();
    watch(&a, 1, NULL, 0, 0);
    put_receives(&a);
    put_state("state", &a);
    line_end();
    end_free(&a);

    // Is the queue of use to others after that?
    a = end_new((struct shape){.cq = small});
    struct end b = end_new((struct shape){0});
    join(&a, &b);
    post_receive(&b, 8);
    post_send(&a, 8);
    watch(&a, 1, &b, 1, 0);
    line("T8 another queue pair on the queue that ran over");
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);
    must(!ibv_destroy_cq(small), "ibv_destroy_cq");
}

void probe_overrun(void) {
    overrun_of_receives();

    struct ibv_cq *small = ibv_create_cq(device, 1, NULL, NULL, 0);
    must(small, "ibv_create_cq");
    struct end a = end_new((struct shape){.cq = small}), b = end_new((struct shape){0});
    join(&a, &b);
    for (int i = 0; i < 4; i++)
        post_receive(&b, 8);
    for (int i = 0; i < 4; i++)
        post_send(&a, 8);
    watch(NULL, 0, &b, 4, 1);
    line("T8 four sends, room for one");
    put_events();
    watch(&a, 1, NULL, 0, 0);
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    put_state("receiver", &b);
    line_end();
    post_receive(&b, 8);
    post_send(&a, 8);
    watch(&a, a.logged + 1, &b, 5, 0);
    line("T8 one more send after that");
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);

    a = end_new((struct shape){.cq = small});
    b = end_new((struct shape){0});
    join(&a, &b);
    for (int i = 0; i < 4; i++)
        post_receive(&a, 8);
    for (int i = 0; i < 4; i++)
        post_send(&b, 8);
    watch(&b, 4, NULL, 0, 1);
    line("T8 four messages received, room for one");
    put_events();
    watch(&a, 1, &b, 4, 0);
    put_receives(&a);
    put_sends(&b);
    put_state("receiver", &a);
    put_state("sender", &b);
    line_end();
    end_free(&a);
    end_free(&b);
    must(!ibv_destroy_cq(small), "ibv_destroy_cq");
}
