//! Memory that programs execute: heaps of Lisps, and what compilers in programs make.

use crate::harness::{Run, compiled_c};

/// Writes functions and data side by side, in memory that is executable all the time, and in memory that is made
/// executable when it is written; calls them in a mixed order, and in a forked child.
const MAKES_CODE: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { SIZE = 8 << 20, PAGES = SIZE / 4096 };
static unsigned char *make(int access, uint32_t seed) {
    unsigned char *memory = mmap(0, SIZE, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (uint32_t page = 0; page < PAGES; page++) {
        unsigned char *at = memory + page * 4096ul;
        uint32_t value = page * 2654435761u + seed;
        at[0] = 0xb8; /* mov eax, value */
        memcpy(at + 1, &value, 4);
        at[5] = 0xc3; /* ret */
        memset(at + 64, (unsigned char)value, 4032);
    }
    return memory;
}
static unsigned wrong_in(unsigned char *memory, uint32_t seed, uint32_t steps) {
    unsigned wrong = 0;
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t page = step * 7919u % PAGES, value = page * 2654435761u + seed;
        unsigned char *at = memory + page * 4096ul;
        wrong += ((uint32_t (*)(void))at)() != value || at[4095] != (unsigned char)value;
    }
    return wrong;
}
static unsigned differ_in(unsigned char *memory, uint32_t seed) {
    unsigned wrong = 0;
    for (uint32_t page = 0; page < PAGES; page++) {
        unsigned char value = (unsigned char)(page * 2654435761u + seed);
        wrong += memory[page * 4096ul + 64] != value || memory[page * 4096ul + 4095] != value;
    }
    return wrong;
}
int main(void) {
    unsigned char *all = make(PROT_READ | PROT_WRITE | PROT_EXEC, 3);
    unsigned char *turned = make(PROT_READ | PROT_WRITE, 9);
    mprotect(turned, SIZE, PROT_READ | PROT_EXEC);
    unsigned wrong = 0;
    for (int round = 0; round < 2; round++) wrong += wrong_in(all, 3, PAGES) + wrong_in(turned, 9, PAGES);
    /* Code is written again while it is far. */
    mprotect(turned, SIZE, PROT_READ | PROT_WRITE);
    for (uint32_t page = 0; page < PAGES; page += 3) turned[page * 4096ul + 5] = 0xc3;
    mprotect(turned, SIZE, PROT_READ | PROT_EXEC);
    /* In a child too: more than the cache of each kind, and of what may only be read. */
    unsigned char *kept = make(PROT_READ | PROT_WRITE, 4);
    mprotect(kept, SIZE, PROT_READ);
    int status = 0;
    if (!fork()) {
        for (int round = 0; round < 2; round++) {
            wrong += wrong_in(all, 3, PAGES) + wrong_in(turned, 9, PAGES) + differ_in(kept, 4);
            /* It writes some of it itself, beside its parent. */
            for (uint32_t page = 0; page < PAGES; page += 2) all[page * 4096ul + 4095] = (unsigned char)(page * 2654435761u + 3);
        }
        mprotect(kept, SIZE, PROT_READ | PROT_EXEC);
        wrong += wrong_in(kept, 4, PAGES);
        _exit(wrong != 0);
    }
    wrong += wrong_in(turned, 9, PAGES) + differ_in(kept, 4);
    wait(&status);
    printf("%u wrong, child %x\n", wrong, status);
    return 0;
}
"#;

/// Lost: it stayed local, beyond the cache.
#[test]
fn memory_that_is_executed_leaves_as_other_memory_does() {
    let run = Run::far(compiled_c("cc", &["-O1"], MAKES_CODE));
    let run = run.cache_mib(12).memory_mib(128).finish().expect_code(0);
    assert_eq!(run.output(), "0 wrong, child 0\n");
    // Of 24 MiB.
    assert!(
        run.stat("far_pages_peak") > (16 << 20) / 4096,
        "{:?}",
        run.stats
    );
}
