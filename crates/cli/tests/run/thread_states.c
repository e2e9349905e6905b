/* Each state of a thread that prctl(2), arch_prctl(2) and their like can set, and memory used in it:
 *
 *     thread_states exec NAMES MEBIBYTES     sets the state and executes itself, which uses memory
 *     thread_states fork NAMES MEBIBYTES     forks, and the child sets the state and uses memory
 *
 * NAMES are separated by commas, or `all`. With WAIT in the environment memory is used until Legato has put a task
 * into the process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif
#define PR_TIMER_CREATE_RESTORE_IDS 77
#define PR_FUTEX_HASH 78
#define ARCH_SET_CPUID 0x1012
#define ARCH_SET_GS 0x1001
#define ARCH_ENABLE_TAGGED_ADDR 0x4002
#define ARCH_SHSTK_ENABLE 0x5001

static volatile char selector;

static int limit(int resource, long value) {
    struct rlimit both = {value, value};
    return setrlimit(resource, &both);
}

static int scheduled(int policy, int priority) {
    struct sched_param parameters = {priority};
    return sched_setscheduler(0, policy, &parameters);
}

static int deadline(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {48, 6, 0, 0, 0, 60000000, 100000000, 100000000};
    return syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static int bound(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

static int ignored(int signal_number) { return signal(signal_number, SIG_IGN) == SIG_ERR ? -1 : 0; }

static int blocked(void) {
    sigset_t all;
    sigfillset(&all);
    return sigprocmask(SIG_BLOCK, &all, NULL);
}

static int pending(void) {
    if (blocked()) return -1;
    for (int number = 1; number < 32; number++)
        if (number != SIGKILL && number != SIGSTOP) raise(number);
    return 0;
}

static int other_stack(void) {
    static char memory[65536];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    return sigaltstack(&stack, NULL);
}

#define P(option, value) (prctl(option, value, 0, 0, 0))
#define STATES(S)                                                                                   \
    S("none", 0)                                                                                    \
    S("tsc", P(PR_SET_TSC, PR_TSC_SIGSEGV))                                                         \
    S("cpuid", syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0))                                          \
    S("gs-base", syscall(SYS_arch_prctl, ARCH_SET_GS, 0x123456000))                                 \
    S("tagged-addresses", syscall(SYS_arch_prctl, ARCH_ENABLE_TAGGED_ADDR, 6))                      \
    S("shadow-stack", syscall(SYS_arch_prctl, ARCH_SHSTK_ENABLE, 1))                                \
    S("idle", scheduled(SCHED_IDLE, 0))                                                             \
    S("batch", scheduled(SCHED_BATCH, 0))                                                           \
    S("fifo", scheduled(SCHED_FIFO, 1))                                                             \
    S("round-robin", scheduled(SCHED_RR, 99))                                                       \
    S("fifo-not-inherited", scheduled(SCHED_FIFO | SCHED_RESET_ON_FORK, 1))                         \
    S("deadline", deadline())                                                                       \
    S("nice", setpriority(PRIO_PROCESS, 0, 19))                                                     \
    S("bound", bound())                                                                             \
    S("bound-fifo", bound() || scheduled(SCHED_FIFO, 50))                                           \
    S("slack", P(PR_SET_TIMERSLACK, 4000000000))                                                    \
    S("limit-file-size", limit(RLIMIT_FSIZE, 0))                                                    \
    S("limit-files", limit(RLIMIT_NOFILE, 4))                                                       \
    S("limit-processes", limit(RLIMIT_NPROC, 1))                                                    \
    S("limit-signals", limit(RLIMIT_SIGPENDING, 0))                                                 \
    S("limit-locked", limit(RLIMIT_MEMLOCK, 0))                                                     \
    S("limit-real-time", limit(RLIMIT_RTTIME, 0))                                                   \
    S("limit-processor", limit(RLIMIT_CPU, 5))                                                      \
    S("limit-messages", limit(RLIMIT_MSGQUEUE, 0))                                                  \
    S("limit-core", limit(RLIMIT_CORE, 0))                                                          \
    S("limit-stack", limit(RLIMIT_STACK, 1 << 20))                                                  \
    S("read-implies-exec", personality(READ_IMPLIES_EXEC) == -1)                                    \
    S("not-random", personality(ADDR_NO_RANDOMIZE | ADDR_COMPAT_LAYOUT) == -1)                      \
    S("page-zero", personality(MMAP_PAGE_ZERO) == -1)                                               \
    S("old-linux", personality(UNAME26 | SHORT_INODE | WHOLE_SECONDS | STICKY_TIMEOUTS) == -1)      \
    S("linux32", personality(PER_LINUX32) == -1)                                                    \
    S("blocked", blocked())                                                                         \
    S("pending", pending())                                                                         \
    S("ignored", ignored(SIGSEGV) || ignored(SIGBUS) || ignored(SIGTRAP) || ignored(SIGSYS))        \
    S("ignored-children", ignored(SIGCHLD))                                                         \
    S("other-stack", other_stack())                                                                 \
    S("no-new-privileges", P(PR_SET_NO_NEW_PRIVS, 1))                                               \
    S("keep-capabilities", P(PR_SET_KEEPCAPS, 1))                                                   \
    S("secure-bits", P(PR_SET_SECUREBITS, 0x2f))                                                    \
    S("not-dumpable", P(PR_SET_DUMPABLE, 0))                                                        \
    S("death-signal", P(PR_SET_PDEATHSIG, SIGKILL))                                                 \
    S("io-flusher", P(PR_SET_IO_FLUSHER, 1))                                                        \
    S("store-bypass", P(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS) &&                           \
                          prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_FORCE_DISABLE, 0, 0)) \
    S("indirect-branches", prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_FORCE_DISABLE, 0, 0)) \
    S("flush-cache", prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_L1D_FLUSH, PR_SPEC_ENABLE, 0, 0))       \
    S("no-huge-pages", P(PR_SET_THP_DISABLE, 1))                                                    \
    S("no-new-code", P(PR_SET_MDWE, 1))                                                             \
    S("merged", P(PR_SET_MEMORY_MERGE, 1))                                                          \
    S("machine-checks", prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0))               \
    S("no-counters", P(PR_TASK_PERF_EVENTS_DISABLE, 0))                                             \
    S("own-core", prctl(PR_SCHED_CORE, 1, 0, 0, 0))                                                 \
    S("futexes", prctl(PR_FUTEX_HASH, 1, 16, 0, 0))                                                 \
    S("timer-ids", P(PR_TIMER_CREATE_RESTORE_IDS, 1))                                               \
    S("name", prctl(PR_SET_NAME, "a) R 1\n(", 0, 0, 0))                                             \
    S("subreaper", P(PR_SET_CHILD_SUBREAPER, 1))                                                    \
    S("user-dispatch", prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector))                     \
    S("alignment", 0)                                                                               \
    S("backwards", 0)                                                                               \
    S("floating-point", 0)

static const char *const names[] = {
#define S(name, set) name,
    STATES(S)
#undef S
};
enum { COUNT = sizeof names / sizeof *names };

static int set(const char *name) {
#define S(state, how) if (!strcmp(name, state)) return (how) ? -1 : 0;
    STATES(S)
#undef S
    return -1;
}

enum { NOTHING, DISPATCH, FLOAT, ALIGNED, BACKWARDS };

static int part_of(const char *name) {
    static const char *const parts[] = {"", "user-dispatch", "floating-point", "alignment", "backwards"};
    for (int part = DISPATCH; part <= BACKWARDS; part++)
        if (!strcmp(name, parts[part])) return part;
    return NOTHING;
}

/* What no library function could be called with. */
static inline void enter(int part) {
    if (part == DISPATCH) selector = 1;
    if (part == FLOAT) _mm_setcsr(0);
    if (part == ALIGNED) __asm__ volatile("pushfq; orl $0x40000, (%%rsp); popfq" ::: "cc", "memory");
    if (part == BACKWARDS) __asm__ volatile("std" ::: "cc", "memory");
}

static inline void leave(void) {
    __asm__ volatile("cld; pushfq; andl $~0x40000, (%%rsp); popfq" ::: "cc", "memory");
    _mm_setcsr(0x1f80);
    selector = 0;
}

static size_t use(volatile uint64_t *memory, size_t words, uint64_t round) {
    size_t wrong = 0;
    for (size_t at = 0; at < words; at += 512) wrong += memory[at] != (round ? at * 31 + round - 1 : 0);
    for (size_t at = 0; at < words; at += 512) memory[at] = at * 31 + round;
    for (size_t at = 0; at < words; at += 512) wrong += memory[at] != at * 31 + round;
    return wrong;
}

static volatile uint64_t *map(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) _exit(9);
    return memory;
}

/* Has Legato put a task into a forked child, or else into a program? Code without a file and without a name is
 * none of this program's. */
static int has_task(int is_fork) {
    static char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !found && fgets(line, sizeof line, maps))
        found = is_fork ? strstr(line, " r-xp 00000000 00:00 0") && !strpbrk(line, "[/")
                        : strstr(line, "/memfd:legato-stats") != NULL;
    if (maps) fclose(maps);
    return found;
}

static void say(const char *how, const char *name, const char *what, size_t wrong) {
    char line[128];
    int length = snprintf(line, sizeof line, "%s %s: ", how, name);
    length += what ? snprintf(line + length, sizeof line - length, "%s\n", what)
                   : snprintf(line + length, sizeof line - length, "%zu wrong\n", wrong);
    if (write(1, line, length) != length) _exit(8);
}

static void until_task(const char *how, const char *name, volatile uint64_t *memory, size_t size, int round,
                       size_t wrong) {
    int is_fork = !strcmp(how, "fork"), waits = getenv("WAIT") != NULL, part = part_of(name), last = round + 100000;
    do {
        enter(part);
        for (int rounds = 0; rounds < 3; rounds++) wrong += use(memory, size / 8, round++);
        leave();
    } while (waits && !has_task(is_fork) && round < last);
    say(how, name, waits && !has_task(is_fork) ? "no task" : NULL, wrong);
}

static void one(const char *how, const char *name, size_t size, char **arguments) {
    int is_fork = !strcmp(how, "fork");
    volatile uint64_t *memory = is_fork ? map(size) : NULL;
    size_t wrong = is_fork ? use(memory, size / 8, 0) : 0;
    pid_t child = fork();
    if (child < 0) _exit(7);
    if (!child) {
        if (set(name)) {
            say(how, name, "not here", 0);
            _exit(0);
        }
        if (!is_fork) {
            char *again[] = {arguments[0], "use", (char *)name, arguments[3], NULL};
            execv("/proc/self/exe", again);
            _exit(6);
        }
        until_task(how, name, memory, size, 1, wrong);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    if (status) printf("%s %s: ended with %d\n", how, name, status);
    if (is_fork) munmap((void *)memory, size);
    fflush(stdout);
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    size_t size = (size_t)atol(arguments[3]) << 20;
    if (!strcmp(arguments[1], "use")) {
        until_task("exec", arguments[2], map(size), size, 0, 0);
        return 0;
    }
    if (strcmp(arguments[2], "all"))
        for (char *name = strtok(arguments[2], ","); name; name = strtok(NULL, ","))
            one(arguments[1], name, size, arguments);
    else
        for (int at = 0; at < COUNT; at++) one(arguments[1], names[at], size, arguments);
    return 0;
}
