//! Kernel features hidden one at a time (LEGATO_MASK_FEATURES): the same results without each, or a
//! clear refusal; and the same memory while the kernel itself merges, collapses and moves pages.

use crate::harness::{
    EnterableDirectory, Finished, Node, Run, legato, sized, system_program, test_directory,
    test_program,
};
use crate::limit::expect_limited;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const CACHE_MIB: u64 = 16;
const EVERYTHING: &str = "touch,calls,discard,remap,unmap,protect,heap,fork";

/// Where what is hidden is not used while pages come and go: the ways to a userfaultfd, poison for
/// pages that are lost, and what Legato does not use at all.
const A_LITTLE: &str = "touch,fork";

fn pattern(phases: &str) -> Run {
    Run::far(test_program("pattern"))
        .arguments(["--bytes", sized("48MiB", "24MiB"), "--seed", "23"])
        .arguments(["--operations", sized("1000", "150"), "--phase", phases])
        .cache_mib(sized(16, 12))
        .memory_mib(512)
}

fn expect_right(run: Run) -> Finished {
    let run = run.finish().expect_code(0).expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
    assert!(run.stat("pages_evicted") > 0);
    run
}

fn right_without(features: &str) -> Finished {
    right_in(EVERYTHING, features)
}

fn right_in(phases: &str, features: &str) -> Finished {
    expect_right(pattern(phases).environment("LEGATO_MASK_FEATURES", features))
}

/// Nothing is forked here, so one process's limit holds for all that is seen.
fn within_limit_without(features: &str) {
    let run = || {
        Run::far(test_program("fill"))
            .arguments(["--bytes", "64MiB", "--threads", "2", "--rounds", "2"])
            .environment("LEGATO_MASK_FEATURES", features)
            .memory_mib(512)
    };
    expect_limited(CACHE_MIB, 0, run, |run| {
        assert_eq!(run.output(), "fill: 16384 pages, 0 wrong\n");
    });
}

#[test]
fn m23_without_move() {
    let run = right_without("move");
    run.expect_told("PROG (PID): this kernel cannot tell");
}

#[test]
fn m23_without_write_protection() {
    right_without("protect");
}

#[test]
fn m23_asynchronous_write_protection_is_not_used() {
    right_in(A_LITTLE, "wp-async");
}

#[test]
fn m23_without_marks_on_far_pages() {
    right_in(A_LITTLE, "wp-unpopulated");
}

#[test]
fn m23_without_poison() {
    right_in(A_LITTLE, "poison");
}

#[test]
fn m23_without_pagemap_scan() {
    right_without("pagemap-scan");
}

#[test]
fn m23_without_an_exact_count_of_what_is_local() {
    right_in(A_LITTLE, "exact-rss");
}

#[test]
fn m23_without_the_device() {
    right_in(A_LITTLE, "device");
}

#[test]
fn m23_without_the_system_call() {
    right_in(A_LITTLE, "syscall");
}

#[test]
fn m23_as_on_linux_5_10() {
    // Pages leave by copy here, which is slow; pattern::without_move_* have the other phases.
    right_in(
        sized(EVERYTHING, "touch,discard,remap,heap,fork"),
        "move,poison,wp-unpopulated,pagemap-scan,wp-async,device,exact-rss",
    );
}

#[test]
fn m23_the_limit_holds_without_move_or_write_protection() {
    within_limit_without("move");
    within_limit_without("protect");
}

#[test]
fn m23_the_limit_holds_without_poison_or_pagemap_scan() {
    within_limit_without("poison");
    within_limit_without("pagemap-scan");
}

#[test]
fn m23_the_limit_holds_without_an_exact_count_of_what_is_local() {
    within_limit_without("exact-rss");
}

/// Never zeros and never a hang: without SIGBUS the program is ended, with a message.
#[test]
fn m23_without_poison_a_lost_page_ends_the_program() {
    let mut node = Node::start("256MiB");
    let mut run = Run::far(test_program("hold"))
        .arguments(["--bytes", "128MiB"])
        .environment("LEGATO_MASK_FEATURES", "poison")
        .at(&[&node])
        .cache_mib(64)
        .start();
    run.wait_for_far_pages(64);
    node.kill();
    run.write(b"go\n");
    let run = run.finish();
    assert_eq!(run.code(), Some(128 + 9), "{}", run.stderr);
    assert_eq!(run.output(), "ready\n");
    run.expect_told("PROG (PID) was killed: the page at PLACE is lost");
}

#[track_caller]
fn expect_refusal(features: &str, row: &str, words: &[&str]) {
    let run = Run::far("echo")
        .arguments(["started"])
        .environment("LEGATO_MASK_FEATURES", features)
        .finish()
        .expect_code(125);
    assert_eq!(run.output(), "");
    assert_eq!(run.stat("exit_status"), 125);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    run.expect_told("the program cannot run");
    run.expect_told(row);
    for word in words {
        assert!(run.stderr.contains(word), "no '{word}' in: {}", run.stderr);
    }
}

#[test]
fn m23_what_cannot_work_is_refused() {
    expect_refusal("move,protect", "this kernel can neither", &["6.8", "5.7"]);
    let device = &["legato allow-users"];
    expect_refusal("device,syscall", "no right to a userfaultfd", device);
}

#[test]
fn m23_a_feature_that_is_none_is_refused() {
    let words = &["'remove'", "pagemap-scan"];
    expect_refusal("poison,remove", "LEGATO_MASK_FEATURES", words);
}

#[test]
fn m24_without_rights_nothing_is_started() {
    let run = unprivileged(&["run", "--cache", "64MiB", "--", "echo", "started"]);
    assert_eq!(run.code(), Some(125), "{}", run.stderr);
    assert_eq!(run.output(), "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    run.expect_told("no right to a userfaultfd");
}

/// `legato` as a user who may do nothing special.
pub(crate) fn unprivileged(arguments: &[&str]) -> Finished {
    let directory = EnterableDirectory::new();
    let copy = directory.0.join("legato");
    fs::copy(legato(), &copy).unwrap();
    Run::plain("setpriv")
        .arguments(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arguments(["--bounding-set=-all"])
        .arguments([copy.as_os_str()])
        .arguments(arguments)
        .finish()
}

/// A setting of the machine. A process of its own puts it back when this value is dropped, or when
/// the test is killed: either way its standard input ends.
struct Setting {
    keeper: Child,
}

impl Setting {
    /// None where the machine does not have it, or does not let us.
    fn change(path: &str, value: &str) -> Option<Self> {
        let before = fs::read_to_string(path).ok()?;
        // The chosen one of several words is in brackets.
        let chosen = before
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        let before = chosen.map_or(before.trim(), |(word, _)| word);
        // In a group of its own, so that what ends the test's group does not end it.
        let keeper = Command::new("sh")
            .args([
                "-c",
                r#"cat > /dev/null; printf %s "$1" > "$0""#,
                path,
                before,
            ])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .ok()?;
        let setting = Self { keeper };
        fs::write(path, value).ok()?;
        Some(setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Huge pages for all memory, pages merged as fast as possible, and pages made inaccessible now
/// and then to see who uses them: with and without MOVE, contents are the same.
#[test]
fn m23_huge_merged_and_sampled_pages_keep_their_contents() {
    let wishes = [
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always"),
        (
            "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
            "10",
        ),
        ("/sys/kernel/mm/ksm/sleep_millisecs", "1"),
        ("/sys/kernel/mm/ksm/run", "1"),
        ("/proc/sys/kernel/numa_balancing", "1"),
    ];
    let settings: Vec<Setting> = wishes
        .iter()
        .filter_map(|(path, value)| Setting::change(path, value))
        .collect();
    let script = test_directory().join("collapse.py");
    fs::write(&script, COLLAPSE).unwrap();
    for features in ["", "move"] {
        right_without(features);
        let run = Run::far(system_program("python3"))
            .arguments([Path::new(&script)])
            .environment("LEGATO_MASK_FEATURES", features)
            .cache_mib(CACHE_MIB)
            .memory_mib(512)
            .finish()
            .expect_code(0)
            .expect_far_pages();
        assert_eq!(run.output(), "right\n");
    }
    drop(settings);
}

/// Writes 64 MiB, of which every second page is the same as many others, asks for merging
/// (MADV_MERGEABLE) and for huge pages at once (MADV_COLLAPSE, Linux 6.1) again and again, and
/// compares everything. What the kernel refuses (pages that are far cannot be collapsed) is no
/// matter: the contents are.
const COLLAPSE: &str = r#"
import mmap, sys
PAGE, HUGE, SIZE = 4096, 2 << 20, 64 << 20
area = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def advise(advice, start, length):
    try:
        area.madvise(advice, start, length)
    except OSError:
        pass
def content(page, turn):
    word = 7 if page % 2 else page * 31 + turn
    return word.to_bytes(8, "little") * (PAGE // 8)
advise(12, 0, SIZE)
for turn in range(3):
    for page in range(SIZE // PAGE):
        area[page * PAGE:(page + 1) * PAGE] = content(page, turn)
    for start in range(0, SIZE, HUGE):
        advise(25, start, HUGE)
    for page in range(SIZE // PAGE):
        if area[page * PAGE:(page + 1) * PAGE] != content(page, turn):
            sys.exit("page %d is wrong in turn %d" % (page, turn))
print("right")
"#;
