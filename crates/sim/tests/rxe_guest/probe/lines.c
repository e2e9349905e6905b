// Waiting for completions and events, and printing them.
#include "rig.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

// How long expected completions may take; only a difference from the kernel that the probes were
// written with waits so long.
enum { HOPE_MS = 3000, MOMENT_MS = 60 };

// Events of objects. Those of the port (addresses that come and go) are none of a probe's business.
static const struct {
    enum ibv_event_type type;
    const char *name;
} events[] = {
    {IBV_EVENT_CQ_ERR, "cq-error"},
    {IBV_EVENT_QP_FATAL, "qp-fatal"},
    {IBV_EVENT_QP_REQ_ERR, "qp-request-error"},
    {IBV_EVENT_QP_ACCESS_ERR, "qp-access-error"},
    {IBV_EVENT_COMM_EST, "communication-established"},
    {IBV_EVENT_SQ_DRAINED, "sq-drained"},
    {IBV_EVENT_SRQ_ERR, "srq-error"},
    {IBV_EVENT_SRQ_LIMIT_REACHED, "srq-limit"},
    {IBV_EVENT_QP_LAST_WQE_REACHED, "last-wqe"},
};
enum { KINDS = sizeof events / sizeof events[0] };
static int counts[KINDS];

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

void pause_ms(int milliseconds) {
    struct timespec length = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&length, NULL);
}

static int take_events(void) {
    struct ibv_async_event event;
    while (!ibv_get_async_event(device, &event)) {
        for (int i = 0; i < KINDS; i++)
            counts[i] += events[i].type == event.event_type;
        ibv_ack_async_event(&event);
    }
    int sum = 0;
    for (int i = 0; i < KINDS; i++)
        sum += counts[i];
    return sum;
}

static int take_completions(struct end *end) {
    if (!end)
        return 0;
    int found;
    while (end->logged < LOG && (found = ibv_poll_cq(end->cq, 1, &end->log[end->logged])) != 0) {
        must(found > 0, "ibv_poll_cq");
        end->logged++;
    }
    return end->logged;
}

void watch(struct end *a, int of_a, struct end *b, int of_b, int wanted) {
    double end = now_ms() + HOPE_MS;
    for (;;) {
        int enough_a = take_completions(a) >= of_a, enough_b = take_completions(b) >= of_b;
        if ((enough_a && enough_b && take_events() >= wanted) || now_ms() > end)
            break;
        pause_ms(1);
    }
    pause_ms(MOMENT_MS);
    take_completions(a);
    take_completions(b);
    take_events();
}

void line(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vprintf(format, rest);
    va_end(rest);
    putchar(':');
}

void field(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    putchar(' ');
    vprintf(format, rest);
    va_end(rest);
}

static void put_queue(const char *name, struct end *end, unsigned from, unsigned to) {
    const char *before = "";
    field("%s=", name);
    for (int i = 0; i < end->logged; i++) {
        struct ibv_wc *found = &end->log[i];
        if (found->wr_id <= from || found->wr_id > to)
            continue;
        printf("%s%u:%d", before, (unsigned)found->wr_id - from, found->status);
        before = ",";
    }
    if (!*before)
        printf("none");
}

void put_sends(struct end *end) {
    put_queue("sends", end, 0, RECEIVES);
}

void put_receives(struct end *end) {
    put_queue("receives", end, RECEIVES, 2 * RECEIVES);
}

void put_state(const char *name, struct end *end) {
    field("%s=%s", name, state_name(state_of(end)));
}

void put_events(void) {
    const char *before = "";
    take_events();
    field("events=");
    for (int i = 0; i < KINDS; i++) {
        if (counts[i])
            printf("%s%s:%d", before, events[i].name, counts[i]), before = ",";
        counts[i] = 0;
    }
    if (!*before)
        printf("none");
}

void line_end(void) {
    putchar('\n');
    fflush(stdout);
}
