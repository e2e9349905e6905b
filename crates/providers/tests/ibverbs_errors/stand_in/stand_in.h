/* A library that has the functions of libibverbs and librdmacm, over one device of its own memory.
 *
 * Both ends of a connection live in one process, and one thread at a time calls in. What a caller
 * must not do is not prevented, it is written down as a violation: an object that is used after its
 * end, a destruction that would wait for ever because of an event that was not acknowledged.
 * What is to go wrong, and where the result is written, is in the environment: control.c. */
#pragma once
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* They are macros over the functions that are exported. */
#undef ibv_query_port
#undef ibv_reg_mr

#define EXPORTED __attribute__((visibility("default")))

enum kind {
    DEVICE_LIST,
    CONTEXT,
    DOMAIN,
    REGION,
    WINDOW,
    COMPLETION_CHANNEL,
    COMPLETION_QUEUE,
    SHARED_RECEIVE_QUEUE,
    QUEUE_PAIR,
    CM_CHANNEL,
    CM_ID,
    UNACKNOWLEDGED_EVENT,
    KINDS,
};

/* The memory of an object is kept after its end, so that a later use is seen. */
struct life {
    enum kind kind;
    bool is_alive;
};

/* Objects that name this one. */
struct users {
    unsigned count;
};

/* control.c */
/* The error with which this call of the function is to fail, or 0. Counts the call. */
int injected(const char *function);
/* Counts the call of a function that cannot say that it failed. */
void called(const char *function);
/* Whether events of this number (enum rdma_cm_event_type) are to get lost. */
bool is_silent(int event);
unsigned devices_wanted(void);
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *begin_life(size_t size, size_t life_at, enum kind kind);
void expect_alive(const struct life *life, const char *function);
void end_life(struct life *life, const char *function);
void count_live(enum kind kind, int change);

#define BEGIN(type, kind) ((type *)begin_life(sizeof(type), offsetof(type, life), kind))
#define FAIL_WITH_NULL()               \
    do {                               \
        int error_ = injected(__func__); \
        if (error_) {                  \
            errno = error_;            \
            return NULL;               \
        }                              \
    } while (0)
#define FAIL_WITH_ERRNO()              \
    do {                               \
        int error_ = injected(__func__); \
        if (error_) {                  \
            errno = error_;            \
            return -1;                 \
        }                              \
    } while (0)
#define FAIL_WITH_NUMBER()             \
    do {                               \
        int error_ = injected(__func__); \
        if (error_)                    \
            return error_;             \
    } while (0)

/* A queue of things behind a descriptor that is readable while it has some. */
struct mailbox {
    int descriptor;
    struct letter *first;
};

struct letter {
    struct letter *next;
    void *content;
};

/* False without a descriptor, with errno. */
bool open_mailbox(struct mailbox *mailbox);
void close_mailbox(struct mailbox *mailbox);
void put_letter(struct mailbox *mailbox, void *content);
/* NULL with errno: EAGAIN where the descriptor does not block and there is none. */
void *take_letter(struct mailbox *mailbox);
/* Takes out what is about an object that ends. */
void discard_letters(struct mailbox *mailbox, bool (*is_about)(void *content, void *object), void *object);

/* device.c */
struct device_context {
    struct verbs_context verbs;
    struct life life;
    struct mailbox events;
};

struct device_context *context_of(struct ibv_context *context);
/* The context that connection management has for itself. */
struct ibv_context *context_of_cm(void);
void raise_event(struct ibv_context *context, enum ibv_event_type type, void *element);
void raise_port_event(struct ibv_context *context, enum ibv_event_type type, int port);

/* objects.c */
struct domain {
    struct ibv_pd pd;
    struct life life;
    struct users users;
};

/* What a key stands for: a region or a bound window. */
struct keyed {
    union {
        struct ibv_mr mr;
        struct ibv_mw mw;
    };
    struct life life;
    struct keyed *next;
    struct domain *domain;
    struct keyed *region; /* of a bound window */
    struct users users;   /* windows bound to a region */
    uint32_t key;
    uint64_t address;
    uint64_t length;
    unsigned access;
    bool is_window;
};

struct completion_channel {
    struct ibv_comp_channel channel;
    struct life life;
    struct mailbox events;
};

struct completion_queue {
    struct ibv_cq cq;
    struct life life;
    struct users users;
    struct ibv_wc *entries;
    unsigned first, count;
    bool is_armed, is_armed_for_solicited;
    unsigned unacknowledged;
};

struct receive {
    uint64_t wr_id;
    int entries;
    struct ibv_sge entry[16];
};

struct receives {
    struct receive *ring;
    unsigned size, first, count;
};

struct shared_receive_queue {
    struct ibv_srq srq;
    struct life life;
    struct users users;
    struct receives receives;
    unsigned limit, entries_max;
    unsigned unacknowledged;
};

struct queue_pair {
    struct ibv_qp qp;
    struct life life;
    struct queue_pair *next;
    struct receives receives;
    struct ibv_qp_attr attributes;
    struct ibv_qp_cap capabilities;
    bool signals_all;
    bool has_said_that_data_came;
    unsigned unacknowledged;
};

void set_object_operations(struct verbs_context *verbs);
struct keyed *find_key(uint32_t key);
struct queue_pair *find_queue_pair(uint32_t number);
bool put_receive(struct receives *receives, const struct ibv_recv_wr *request);
bool take_receive(struct receives *receives, struct receive *into);

/* connections.c */
/* Whether the end of a connection has been told, if the queue pair has one. */
bool knows_that_it_is_connected(uint32_t queue_pair);

/* data.c */
void set_data_operations(struct verbs_context *context);
void flush(struct queue_pair *queue_pair);
