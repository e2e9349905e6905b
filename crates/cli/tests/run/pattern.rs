//! The pattern program over several times the cache.

use crate::harness::{Finished, Run, sized, test_program};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn arguments(seed: u64, phases: &str) -> [String; 8] {
    let seed = seed.to_string();
    [
        "--bytes",
        sized("512MiB", "64MiB"),
        "--operations",
        sized("60000", "3000"),
        "--seed",
        &seed,
        "--phase",
        phases,
    ]
    .map(str::to_owned)
}

fn far(seed: u64, phases: &str) -> Finished {
    let run = Run::far(test_program("pattern"))
        .arguments(arguments(seed, phases))
        .cache_mib(sized(64, 16))
        .memory_mib(sized(2048, 512))
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
    run
}

const EVERYTHING: &str = "touch,calls,discard,remap,unmap,protect,heap,fork,busy-fork";

#[test]
fn pattern_threads_touch_far_pages() {
    far(1, "touch");
}

#[test]
fn pattern_system_calls_use_far_pages() {
    far(2, "calls");
}

#[test]
fn pattern_discarded_pages_are_zeros() {
    far(3, "discard");
}

#[test]
fn pattern_moved_and_unmapped_pages() {
    far(4, "remap,unmap");
}

/// The first phase also reads as much as the cache in a mapping that may only be read, and eight times
/// as much: such memory can leave.
#[test]
fn pattern_protected_pages_and_the_heap() {
    far(5, "protect,heap");
}

/// Wrong: the kernel moves a page that it has just migrated without counting it (UFFDIO_MOVE), and
/// what it held was given up.
#[test]
fn pattern_while_the_kernel_compacts_memory() {
    const COMPACT: &str = "/proc/sys/vm/compact_memory";
    if std::fs::write(COMPACT, "1").is_err() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED, no right to have memory compacted ({COMPACT})"
        );
        return;
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                std::fs::write(COMPACT, "1").unwrap();
            }
        });
        let run = Run::far(test_program("pattern"))
            .arguments(["--bytes", "64MiB", "--operations", "500"])
            .arguments(["--phase", "protect,unmap,heap"])
            .cache_mib(16)
            .memory_mib(512)
            .finish();
        over.store(true, Relaxed);
        let run = run.expect_code(0).expect_far_pages();
        assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
    });
}

#[test]
fn pattern_forked_processes_see_their_own_writes_only() {
    far(6, "fork");
}

#[test]
fn pattern_one_thread_forks_while_others_write() {
    far(7, "busy-fork");
}

#[test]
fn pattern_everything_in_one_process() {
    far(8, EVERYTHING);
}

/// Where pages cannot be moved they are write-protected, copied and dropped.
fn without_move(seed: u64, phases: &str) {
    let run = Run::far(test_program("pattern"))
        .arguments(arguments(seed, phases))
        .environment("LEGATO_MASK_FEATURES", "move")
        .cache_mib(sized(64, 16))
        .memory_mib(sized(2048, 512))
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
    run.expect_told("PROG (PID): this kernel cannot tell");
}

#[test]
fn without_move_the_pattern_holds() {
    without_move(11, "touch,calls,discard,remap,unmap");
}

#[test]
fn without_move_protected_and_forked_pages_hold() {
    without_move(12, "protect,fork,busy-fork");
}

/// What the program asks of memory is what Linux gives without Legato.
#[test]
fn pattern_passes_on_local_memory() {
    let run = Run::plain(test_program("pattern"))
        .arguments(arguments(9, EVERYTHING))
        .finish();
    run.expect_code(0);
}

#[test]
fn pattern_sees_one_flipped_bit() {
    let arguments = ["--bytes", "16MiB", "--phase", "canary"];
    let run = Run::plain(test_program("pattern"))
        .arguments(arguments)
        .finish()
        .expect_code(1);
    assert!(
        run.stderr.contains("1 wrong words from word 300"),
        "{}",
        run.stderr
    );
}
