// What all probes use: two ends on one device, requests with numbers, completions that are kept by
// queue, and lines without anything that depends on time or addresses. LINES.md beside this
// directory says what the lines mean.
#ifndef RIG_H
#define RIG_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    MTU = 1024,
    AREA = 16384,
    QUEUE = 8,
    LOG = 256,
    // A queue pair number that nobody has.
    NOBODY = 0xabcde,
    // Receives are numbered from here on, sends from 1: an error says nothing else about its queue.
    RECEIVES = 1000,
    ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                 IBV_ACCESS_REMOTE_ATOMIC,
};

// AREA bytes, of which the first ones may be registered.
struct area {
    char *bytes;
    struct ibv_mr *mr;
};

struct end {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    bool shares_cq;
    unsigned sends, receives;
    struct ibv_wc log[LOG];
    int logged;
};

struct shape {
    int sends, receives; // QUEUE where 0
    bool silent;         // only requests that ask for it complete on success
    struct ibv_srq *srq;
    struct ibv_cq *cq;   // its own where NULL
};

struct tune {
    int timeout, retry_count, rnr_retry, access;
};

extern const struct tune usual; // timeout 14, retry_count 3, rnr_retry 3, every access
extern struct ibv_context *device;
extern struct ibv_pd *domain;
extern struct area source; // full of a pattern without zeros
extern struct area inbox;  // where receives and READs put bytes

void rig_open(void);
// Ends the program where a step fails that no probe is about.
void must(bool ok, const char *what);

struct area area_new(struct ibv_pd *pd, int registered, int access);
void area_free(struct area *area);
// How many bytes from the start on are those of `source`.
int area_written(const struct area *area);
bool area_untouched(const struct area *area);

struct end end_new(struct shape shape);
void end_free(struct end *end);

// Each is one ibv_modify_qp with exactly the attributes that the state needs, and its result.
int to_init(struct end *end, int access);
int to_rtr(struct end *end, uint32_t destination);
int to_rts(struct end *end, const struct tune *tune);
int to_state(struct end *end, enum ibv_qp_state state);
enum ibv_qp_state state_of(struct end *end);
const char *state_name(enum ibv_qp_state state);
void reach(struct end *end, uint32_t destination, const struct tune *tune);
void join_tuned(struct end *a, struct end *b, const struct tune *tune);
void join(struct end *a, struct end *b);

// Posts with the next number, `length` bytes of `source` or into `inbox`; the number is used up also
// where the post is refused, whose result they return.
int post(struct end *end, struct ibv_send_wr *request, int length);
int post_send(struct end *end, int length);
int post_silent(struct end *end, int length);
int post_write(struct end *end, const struct area *area, int offset, int length);
int post_read(struct end *end, const struct area *area, int offset, int length);
int post_receive(struct end *end, int length);
int post_shared(struct ibv_srq *srq, unsigned number, int length);

// Polls until `a` and `b` (which may be NULL) have that many completions in their logs and so many
// events have come, or until there is no hope of it; then for a moment more, so that what comes too
// much is seen too. Clears nothing.
void watch(struct end *a, int of_a, struct end *b, int of_b, int events);
void pause_ms(int milliseconds);

// One line: its key, its fields, its end. Events are counted since the last line that had them.
void line(const char *format, ...) __attribute__((format(printf, 1, 2)));
void field(const char *format, ...) __attribute__((format(printf, 1, 2)));
void put_sends(struct end *end);
void put_receives(struct end *end);
void put_state(const char *name, struct end *end);
void put_events(void);
void line_end(void);

void probe_order(void);       // T1
void probe_nobody(void);      // T2
void probe_no_receive(void);  // T3
void probe_too_long(void);    // T4
void probe_refused(void);     // T5
void probe_partial(void);     // T6
void probe_slots(void);       // T7
void probe_overrun(void);     // T8
void probe_shared(void);      // T9
void probe_ends(void);        // T10
void probe_local(void);       // T11
void probe_states(void);      // T12
void probe_operations(void);  // T13

#endif
