/* What goes wrong, and what is written down.
 *
 *   STAND_IN_FAIL=FUNCTION:FIRST:ERRNO:COUNT   calls FIRST to FIRST+COUNT-1 of FUNCTION fail
 *   STAND_IN_SILENT=NUMBER                     events of connection management that get lost
 *   STAND_IN_DEVICES=COUNT                     how many devices are listed, 1 unless given
 *   STAND_IN_REPORT=FILE                       lines are added: `violation TEXT`, and at the end
 *                                              `call FUNCTION COUNT`, `live KIND COUNT`, `failed COUNT` */
#include "stand_in.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { FUNCTIONS_MAX = 128, NAME_MAX_LENGTH = 63 };

static struct {
    const char *name;
    unsigned long calls;
} functions[FUNCTIONS_MAX];

static struct {
    char function[NAME_MAX_LENGTH + 1];
    unsigned long first, count;
    int error;
} plan;

static unsigned long failed;
static long live[KINDS];
static int silent = -1;
static unsigned devices = 1;
static FILE *report;

static const char *const kind_names[KINDS] = {
    [DEVICE_LIST] = "device-list",
    [CONTEXT] = "context",
    [DOMAIN] = "domain",
    [REGION] = "region",
    [WINDOW] = "window",
    [COMPLETION_CHANNEL] = "completion-channel",
    [COMPLETION_QUEUE] = "completion-queue",
    [SHARED_RECEIVE_QUEUE] = "shared-receive-queue",
    [QUEUE_PAIR] = "queue-pair",
    [CM_CHANNEL] = "cm-channel",
    [CM_ID] = "cm-id",
    [UNACKNOWLEDGED_EVENT] = "unacknowledged-event",
};

static void stop(const char *why) {
    fprintf(stderr, "stand-in library: %s\n", why);
    abort();
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("STAND_IN_REPORT");
    if (text && !(report = fopen(text, "ae")))
        stop("cannot open STAND_IN_REPORT");
    text = getenv("STAND_IN_FAIL");
    if (text && sscanf(text, "%63[^:]:%lu:%d:%lu", plan.function, &plan.first, &plan.error,
                       &plan.count) != 4)
        stop("STAND_IN_FAIL is not FUNCTION:FIRST:ERRNO:COUNT");
    text = getenv("STAND_IN_SILENT");
    if (text)
        silent = atoi(text);
    text = getenv("STAND_IN_DEVICES");
    if (text)
        devices = (unsigned)atoi(text);
}

__attribute__((destructor)) static void end(void) {
    if (!report)
        return;
    for (unsigned n = 0; n < FUNCTIONS_MAX && functions[n].name; n++)
        fprintf(report, "call %s %lu\n", functions[n].name, functions[n].calls);
    for (int kind = 0; kind < KINDS; kind++)
        fprintf(report, "live %s %ld\n", kind_names[kind], live[kind]);
    fprintf(report, "failed %lu\n", failed);
    fclose(report);
    report = NULL;
}

static unsigned place_of(const char *function) {
    unsigned n = 0;
    while (n < FUNCTIONS_MAX && functions[n].name && strcmp(functions[n].name, function))
        n++;
    if (n == FUNCTIONS_MAX)
        stop("more functions than FUNCTIONS_MAX");
    functions[n].name = function;
    functions[n].calls++;
    return n;
}

void called(const char *function) {
    (void)place_of(function);
}

int injected(const char *function) {
    unsigned n = place_of(function);
    if (strcmp(function, plan.function) || functions[n].calls < plan.first ||
        functions[n].calls - plan.first >= plan.count)
        return 0;
    failed++;
    return plan.error;
}

bool is_silent(int event) {
    return event == silent;
}

unsigned devices_wanted(void) {
    return devices;
}

void violation(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    FILE *out = report ? report : stderr;
    fputs("violation ", out);
    vfprintf(out, format, arguments);
    fputc('\n', out);
    fflush(out);
    va_end(arguments);
}

void count_live(enum kind kind, int change) {
    live[kind] += change;
    if (live[kind] < 0)
        violation("more %s ended than begun", kind_names[kind]);
}

void *begin_life(size_t size, size_t life_at, enum kind kind) {
    char *object = calloc(1, size);
    if (!object)
        stop("no memory");
    struct life *life = (struct life *)(object + life_at);
    life->kind = kind;
    life->is_alive = true;
    count_live(kind, 1);
    return object;
}

void expect_alive(const struct life *life, const char *function) {
    if (!life->is_alive)
        violation("%s of a %s after its end", function, kind_names[life->kind]);
}

void end_life(struct life *life, const char *function) {
    expect_alive(life, function);
    if (life->is_alive)
        count_live(life->kind, -1);
    life->is_alive = false;
}

bool open_mailbox(struct mailbox *mailbox) {
    mailbox->descriptor = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
    return mailbox->descriptor >= 0;
}

void close_mailbox(struct mailbox *mailbox) {
    close(mailbox->descriptor);
}

void put_letter(struct mailbox *mailbox, void *content) {
    struct letter *letter = calloc(1, sizeof *letter), **last = &mailbox->first;
    if (!letter)
        stop("no memory");
    letter->content = content;
    while (*last)
        last = &(*last)->next;
    *last = letter;
    if (eventfd_write(mailbox->descriptor, 1))
        stop("cannot write an eventfd");
}

void *take_letter(struct mailbox *mailbox) {
    /* The kernel's files wait in a read, and so would a call of the real library. */
    if (!(fcntl(mailbox->descriptor, F_GETFL) & O_NONBLOCK))
        violation("an event is read from a descriptor that blocks");
    eventfd_t one;
    struct letter *letter = mailbox->first;
    if (!letter) {
        errno = EAGAIN;
        return NULL;
    }
    if (eventfd_read(mailbox->descriptor, &one))
        stop("cannot read an eventfd");
    void *content = letter->content;
    mailbox->first = letter->next;
    free(letter);
    return content;
}

void discard_letters(struct mailbox *mailbox, bool (*is_about)(void *, void *), void *object) {
    struct letter **at = &mailbox->first;
    while (*at) {
        struct letter *letter = *at;
        if (!is_about(letter->content, object)) {
            at = &letter->next;
            continue;
        }
        eventfd_t one;
        if (eventfd_read(mailbox->descriptor, &one))
            stop("cannot read an eventfd");
        *at = letter->next;
        free(letter->content);
        free(letter);
    }
}
