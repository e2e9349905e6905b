//! Programs that glibc's dynamic loader does not start: static ones, into which the agent gets in another
//! way, and those of musl's loader.

use crate::harness::{
    Run, compiled_c, compiled_go, expect_pattern, static_c, system_program, test_directory,
    test_program,
};
use crate::limit::expect_limited;
use rustix::process::{Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn far(program: impl AsRef<Path>) -> Run {
    Run::far(program.as_ref()).cache_mib(32).memory_mib(768)
}

#[test]
fn a_static_program_of_glibc_fills_and_checks() {
    let run = || {
        let program = far(test_program("fill_static"));
        program.arguments(["--bytes", "256MiB", "--threads", "2", "--rounds", "2"])
    };
    expect_limited(32, 0, run, |run| {
        assert_eq!(run.output(), "fill: 65536 pages, 0 wrong\n");
    });
}

#[test]
fn a_static_program_of_glibc_keeps_the_pattern() {
    expect_pattern(Run::far(test_program("pattern_static")), "1500", "21");
}

/// A heap of 200 MiB, `argv` and the environment intact, and the program's own exit status.
const WALK: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    size_t size = 200u << 20, wrong = 0;
    unsigned char *memory = malloc(size);
    for (size_t at = 0; at < size; at += 4096) *(size_t *)(memory + at) = at * 7 + 1;
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < size; at += 4096) wrong += *(size_t *)(memory + at) != at * 7 + 1;
    printf("%d %s %s %s %zu wrong\n", count, arguments[0], arguments[count - 1], getenv("COLOUR"), wrong);
    return 3;
}
"#;

#[test]
fn a_static_program_of_musl_has_its_arguments_environment_and_status() {
    let program = static_c("musl-gcc", WALK);
    let run = || {
        let run = far(&program).arguments(["one", "last one"]);
        run.environment("COLOUR", "dark red")
    };
    let expected = format!("3 {} last one dark red 0 wrong\n", program.display());
    expect_limited(32, 3, run, |run| assert_eq!(run.output(), expected));
}

/// Initialisation functions get no arguments from musl's loader.
#[test]
fn a_program_of_musls_loader_has_its_arguments_environment_and_status() {
    let program = compiled_c("musl-gcc", &[], WALK);
    let run = || {
        let run = far(&program).arguments(["one", "last one"]);
        run.environment("COLOUR", "dark red")
    };
    let expected = format!("3 {} last one dark red 0 wrong\n", program.display());
    expect_limited(32, 3, run, |run| {
        assert_eq!(run.output(), expected);
        assert_eq!(run.stats.as_ref().unwrap()["processes_injected"], 0);
    });
}

/// Threads of musl's, which map and unmap their own stacks, come and go.
#[test]
fn threads_of_a_program_of_musls_loader_keep_their_memory() {
    let program = compiled_c("musl-gcc", &[], THREADS);
    let run = far(&program).finish().expect_code(0).expect_far_pages();
    assert_eq!(run.output(), "0 wrong\n");
}

/// All of musl's threads have one word that the kernel clears when one of them ends, and until then
/// none other comes or goes. Here it is set, its page is not used for long, and a thread ends.
#[test]
fn m12_the_end_of_a_thread_of_musls_is_seen_by_the_others() {
    for program in [
        compiled_c("musl-gcc", &[], LAST_WORD),
        static_c("musl-gcc", LAST_WORD),
    ] {
        let run = Run::far(&program).cache_mib(8).memory_mib(768);
        let run = run.finish().expect_code(0).expect_far_pages();
        assert_eq!(run.output(), "0 wrong, the word is 0\n");
    }
}

const LAST_WORD: &str = r#"
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
/* Behind this, what is zero at first is no part of the file's mapping, and may go far. */
static volatile char room[65536];
static int door;
static volatile int thread;
/* Without a function of the library, which may keep something on the page of the word. */
static inline long call(long number, long a, long b, long c) {
    register long none __asm__("r10") = 0;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(none) : "rcx", "r11", "memory");
    return number;
}
enum { WAIT, WAKE };
static void *leave(void *nothing) {
    thread = call(SYS_gettid, 0, 0, 0);
    while (!*(volatile int *)&door) call(SYS_futex, (long)&door, WAIT, 0);
    call(SYS_exit, 0, 0, 0);
    return nothing;
}
int main(void) {
    size_t pages = 8192, wrong = 0, next = 1;
    unsigned char *memory = malloc(pages << 12);
    volatile int *word;
    pthread_t one;
    if (!memory || prctl(PR_GET_TID_ADDRESS, &word)) return 2;
    if (pthread_create(&one, 0, leave, 0)) return 3;
    while (!thread) sched_yield();
    room[0] = 1;
    *word = 1;
    for (size_t page = 0; page < pages; page++) *(size_t *)(memory + (page << 12)) = page + 1;
    for (int touch = 0; touch < 20000; touch++) {
        next = next * 6364136223846793005u + 1442695040888963407u;
        size_t page = (next >> 33) % pages;
        wrong += *(size_t *)(memory + (page << 12)) != page + 1;
    }
    *(volatile int *)&door = 1;
    call(SYS_futex, (long)&door, WAKE, 1);
    while (!call(SYS_tgkill, getpid(), thread, 0)) call(SYS_sched_yield, 0, 0, 0);
    int last = *word;
    *word = 0;
    printf("%zu wrong, the word is %d\n", wrong, last);
    return 0;
}
"#;

const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static size_t size = 12u << 20;
static void *work(void *seed) {
    size_t wrong = 0, mark = (size_t)seed;
    unsigned char *memory = malloc(size);
    for (size_t at = 0; at < size; at += 4096) *(size_t *)(memory + at) = at * 7 + mark;
    for (size_t at = 0; at < size; at += 4096) wrong += *(size_t *)(memory + at) != at * 7 + mark;
    free(memory);
    return (void *)wrong;
}
int main(void) {
    size_t wrong = 0;
    for (size_t round = 0; round < 20; round++) {
        pthread_t threads[4];
        for (size_t one = 0; one < 4; one++)
            if (pthread_create(&threads[one], 0, work, (void *)(round * 4 + one + 1))) return 2;
        for (size_t one = 0; one < 4; one++) {
            void *result;
            if (pthread_join(threads[one], &result)) return 3;
            wrong += (size_t)result;
        }
    }
    printf("%zu wrong\n", wrong);
    return 0;
}
"#;

const GO: &str = r#"
package main

import (
	"fmt"
	"os"
	"sync"
)

// Maps without pointers in them: the collector need not walk through 200 MB all the time.
func main() {
	const routines, entries = 16, 400000
	maps := make([]map[uint64]uint64, routines)
	// So many at a time, because random places in all of the memory would take too long.
	turns := make(chan bool, 2)
	each := func(work func(int)) {
		var group sync.WaitGroup
		for routine := 0; routine < routines; routine++ {
			group.Add(1)
			go func(routine int) {
				defer group.Done()
				turns <- true
				work(routine)
				<-turns
			}(routine)
		}
		group.Wait()
	}
	each(func(routine int) {
		maps[routine] = make(map[uint64]uint64, entries)
		for key := uint64(0); key < entries; key++ {
			maps[routine][key*2654435761] = key ^ uint64(routine)
		}
	})
	wrong := make([]int, routines)
	each(func(routine int) {
		for key := uint64(0); key < entries; key++ {
			value, found := maps[routine][key*2654435761]
			if !found || value != key^uint64(routine) {
				wrong[routine]++
			}
		}
	})
	sum := 0
	for _, count := range wrong {
		sum += count
	}
	fmt.Println(routines*entries, "entries,", sum, "wrong,", os.Args[1])
}
"#;

#[test]
fn a_go_program_with_many_goroutines() {
    let program = compiled_go(GO);
    let run = || {
        let run = Run::far(&program).arguments(["here"]);
        run.memory_mib(1024)
    };
    expect_limited(64, 0, run, |run| {
        assert_eq!(run.output(), "6400000 entries, 0 wrong, here\n");
    });
}

#[test]
fn the_smallest_static_program_ends_as_it_wants() {
    let program = smallest_program();
    Run::plain(&program).finish().expect_code(7);
    let run = far(&program).with_summary().finish().expect_code(7);
    // With an agent, though nothing of its memory may go far.
    assert!(run.stderr.contains("1 process"), "{}", run.stderr);
}

/// One that uses its memory before its first system call gets its agent without one.
#[test]
fn a_static_program_that_computes_first_has_far_memory() {
    let program = compiled_c("cc", &["-static", "-nostdlib", "-fno-builtin"], COMPUTES);
    far(&program).finish().expect_code(7).expect_far_pages();
}

const COMPUTES: &str = r#"
static volatile unsigned long memory[96u << 17];
void _start(void) {
    unsigned long wrong = 0, count = sizeof memory / sizeof *memory;
    for (volatile unsigned long turn = 0; turn < 300000000; turn++);
    for (unsigned long at = 0; at < count; at += 512) memory[at] = at + 1;
    for (unsigned long at = 0; at < count; at += 512) wrong += memory[at] != at + 1;
    __asm__ volatile("syscall" : : "a"(231L), "D"(wrong ? 1L : 7L));
}
"#;

#[test]
fn a_script_with_a_static_interpreter() {
    let program = static_c("cc", WALK);
    let script = test_directory().join("script");
    fs::write(&script, format!("#!{}\n", program.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let run = far(&script)
        .environment("COLOUR", "blue")
        .finish()
        .expect_code(3)
        .expect_far_pages();
    assert!(
        run.output().ends_with(" blue 0 wrong\n"),
        "{}",
        run.output()
    );
}

/// Handlers work, and what is blocked, ignored and traced is as without Legato.
const SIGNALS: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static volatile sig_atomic_t seen;
static void handler(int number) { seen = number; }
int main(void) {
    struct sigaction action = {.sa_handler = handler};
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (!strncmp(line, "Sig", 3) && strncmp(line, "SigQ", 4) || !strncmp(line, "Shd", 3) || !strncmp(line, "Tracer", 6)) fputs(line, stdout);
    sigaction(SIGTERM, &action, 0);
    puts("ready");
    fflush(stdout);
    while (!seen) pause();
    printf("signal %d\n", (int)seen);
    fflush(stdout);
    raise(SIGTRAP);
    return 1;
}
"#;

#[test]
fn signals_of_a_static_program() {
    let program = static_c("cc", SIGNALS);
    let outcome = |run: Run| {
        let run = run.start();
        run.wait_for_output("ready");
        kill_process(run.pid(), Signal::TERM).unwrap();
        run.finish()
    };
    let (plain, far) = (outcome(Run::plain(&program)), outcome(far(&program)));
    assert_eq!(plain.output(), far.output());
    assert_eq!(plain.signal(), Some(Signal::TRAP.as_raw()));
    assert_eq!(far.code(), Some(128 + Signal::TRAP.as_raw()));
}

#[test]
fn a_static_program_that_cannot_be_executed() {
    let program = smallest_program();
    // As long as somebody may write to it, execve(2) says ETXTBSY.
    let _writer = fs::OpenOptions::new().append(true).open(&program).unwrap();
    let run = far(&program).finish().expect_code(126);
    assert_eq!(run.output(), "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    run.expect_told("WHAT: REASON; somebody writes");
}

#[test]
fn without_its_agent_a_static_program_does_not_start() {
    let run = far(static_c("cc", WALK))
        .environment("LEGATO_MASK_FEATURES", "move,protect")
        .finish()
        .expect_code(125);
    assert_eq!(run.output(), "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    run.expect_told("this kernel can neither");
}

#[test]
fn children_of_a_static_program_have_agents() {
    let spawn = r#"
#include <stdlib.h>
int main(int count, char **arguments) { return system(arguments[1]) != 0; }
"#;
    let list = system_program("seq");
    let run = far(static_c("cc", spawn))
        .arguments([format!("{} 3", list.display())])
        .with_summary()
        .finish()
        .expect_code(0);
    assert_eq!(run.output(), "1\n2\n3\n");
    let processes = run.stats.as_ref().unwrap()["processes"]
        .as_array()
        .unwrap()
        .len();
    assert!(processes >= 2, "{:?}", run.stats);
}

/// An ELF header, one loaded segment, and `exit(7)`.
fn smallest_program() -> PathBuf {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    // mov edi, 7; mov eax, 60 (exit); syscall
    const CODE: [u8; 12] = [0xBF, 7, 0, 0, 0, 0xB8, 60, 0, 0, 0, 0x0F, 0x05];
    let size = HEADERS + CODE.len() as u64;
    let mut file = vec![0x7F, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |file: &mut Vec<u8>, values: &[u16]| {
        values
            .iter()
            .for_each(|value| file.extend([*value as u8, (*value >> 8) as u8]));
    };
    let word = |file: &mut Vec<u8>, values: &[u64], bytes: usize| {
        for value in values {
            file.extend((0..bytes).map(|index| (value >> (8 * index)) as u8));
        }
    };
    half(&mut file, &[2, 62]);
    word(&mut file, &[1], 4);
    word(&mut file, &[BASE + HEADERS, 64, 0], 8);
    word(&mut file, &[0], 4);
    half(&mut file, &[64, 56, 1, 0, 0, 0]);
    word(&mut file, &[1, 5], 4);
    word(&mut file, &[0, BASE, BASE, size, size, 4096], 8);
    file.extend(CODE);
    let path = test_directory().join("static");
    fs::write(&path, file).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}
