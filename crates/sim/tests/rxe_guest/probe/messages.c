// T1 to T4: messages that arrive, and messages for which there is nobody, no receive, or no room.
#include "rig.h"

#include <string.h>
#include <time.h>

void probe_order(void) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join(&a, &b);
    for (int i = 0; i < 4; i++)
        post_receive(&b, 64);
    for (int i = 0; i < 4; i++)
        post_send(&a, 32);
    watch(&a, 4, &b, 4, 0);
    line("T1 four messages");
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    put_state("receiver", &b);
    put_events();
    line_end();

    post_receive(&b, 64);
    post_send(&a, 0);
    post_receive(&b, 2 * MTU + 1);
    post_send(&a, 2 * MTU + 1);
    watch(&a, 6, &b, 6, 0);
    line("T1 lengths none and three packets");
    field("received=%u,%u", b.log[4].byte_len, b.log[5].byte_len);
    field("bytes=%s", area_written(&inbox) == 2 * MTU + 1 ? "right" : "wrong");
    put_events();
    line_end();
    memset(inbox.bytes, 0, AREA);
    end_free(&a);
    end_free(&b);

    // Both ends' completions in one queue: those of each end in their order, the merge is open.
    struct ibv_cq *cq = ibv_create_cq(device, 64, NULL, NULL, 0);
    must(cq, "ibv_create_cq");
    a = end_new((struct shape){.cq = cq});
    b = end_new((struct shape){.cq = cq});
    join(&a, &b);
    for (int i = 0; i < 2; i++)
        post_receive(&b, 64);
    for (int i = 0; i < 2; i++)
        post_send(&a, 32);
    watch(&a, 4, NULL, 0, 0);
    line("T1 one completion queue, two messages");
    char order[LOG] = "";
    for (int i = 0; i < a.logged && i < 9; i++) {
        bool received = a.log[i].wr_id > RECEIVES;
        char one[] = {i ? ',' : '=', received ? 'r' : 's', '0' + a.log[i].wr_id % RECEIVES % 10, 0};
        strcat(order, one);
    }
    field("order%s", order);
    line_end();
    end_free(&a);
    end_free(&b);
    must(!ibv_destroy_cq(cq), "ibv_destroy_cq");
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

void probe_nobody(void) {
    struct end a = end_new((struct shape){.silent = true});
    reach(&a, NOBODY, &usual);
    post_receive(&a, 64);
    post_receive(&a, 64);
    double start = seconds();
    for (int i = 0; i < 3; i++)
        post_silent(&a, 64);
    watch(&a, 1, NULL, 0, 0);
    double took = seconds() - start;
    watch(&a, 5, NULL, 0, 0);
    line("T2 nobody there, three silent sends and two receives");
    put_sends(&a);
    put_receives(&a);
    put_state("sender", &a);
    // Four times 4.096 us x 2^14 is 0.268 s; half of it is allowed for what timers are made of.
    field("retried=%s", took > 0.134 ? "yes" : "no");
    put_events();
    line_end();
    end_free(&a);

    for (int retry_count = 5; retry_count <= 7; retry_count++) {
        struct tune tune = usual;
        tune.timeout = 10;
        tune.retry_count = retry_count;
        a = end_new((struct shape){0});
        reach(&a, NOBODY, &tune);
        post_send(&a, 64);
        // The seventh would be 34 ms; what has not given up after a second never will.
        for (int i = 0; i < 10 && !a.logged; i++) {
            pause_ms(retry_count == 7 ? 100 : 0);
            watch(&a, retry_count == 7 ? 0 : 1, NULL, 0, 0);
        }
        line("T2 nobody there, timeout 10, retry_count %d", retry_count);
        put_sends(&a);
        put_state("sender", &a);
        line_end();
        end_free(&a);
    }
}

void probe_no_receive(void) {
    for (int retries = 0; retries <= 2; retries += 2) {
        struct tune tune = usual;
        tune.rnr_retry = retries;
        struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
        join_tuned(&a, &b, &tune);
        post_send(&a, 8);
        post_send(&a, 8);
        watch(&a, 2, &b, 0, 0);
        line("T3 no receive, rnr_retry %d", retries);
        put_sends(&a);
        put_receives(&b);
        put_state("sender", &a);
        put_state("receiver", &b);
        put_events();
        line_end();
        end_free(&a);
        end_free(&b);
    }

    struct tune tune = usual;
    tune.rnr_retry = 7;
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join_tuned(&a, &b, &tune);
    post_send(&a, 8);
    watch(&a, 0, &b, 0, 0);
    pause_ms(100);
    watch(&a, 0, &b, 0, 0);
    line("T3 no receive, rnr_retry 7, before the receive");
    put_sends(&a);
    put_state("sender", &a);
    line_end();
    post_receive(&b, 8);
    watch(&a, 1, &b, 1, 0);
    line("T3 no receive, rnr_retry 7, after the receive");
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    put_state("receiver", &b);
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);
}

static void too_long(const char *name, int room, int length) {
    struct end a = end_new((struct shape){0}), b = end_new((struct shape){0});
    join(&a, &b);
    memset(inbox.bytes, 0, AREA);
    post_receive(&b, room);
    post_receive(&b, room);
    post_send(&a, length);
    post_send(&a, 8);
    watch(&a, 2, &b, 2, 0);
    line("T4 %s", name);
    put_sends(&a);
    put_receives(&b);
    put_state("sender", &a);
    put_state("receiver", &b);
    put_events();
    line_end();
    end_free(&a);
    end_free(&b);
    memset(inbox.bytes, 0, AREA);
}

void probe_too_long(void) {
    too_long("64 bytes into 64", 64, 64);
    too_long("64 bytes into 16", 16, 64);
    too_long("four packets into two", 2 * MTU, 4 * MTU);
}
