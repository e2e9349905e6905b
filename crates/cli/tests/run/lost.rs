//! A memory node that dies takes the only copy of its pages with it, and one whose memory is bad damages
//! them: that is SIGBUS and a message, never zeros, never what came, and never a hang.

use crate::harness::{Finished, Node, Run, Running, test_program};
use legato_base::wire::slot::{SLOT_HEADER_SIZE, SLOT_STRIDE, is_written};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;

const PAGES: u64 = 128 * 256;

fn holding(nodes: &[&Node], catch: bool) -> Running {
    let run = Run::far(test_program("hold"))
        .arguments(["--bytes", "128MiB"])
        .arguments(catch.then_some("--catch-sigbus"))
        .at(nodes)
        .cache_mib(64)
        .start();
    run.wait_for_far_pages(64);
    run
}

/// The three numbers of `hold: R right, L lost, W wrong`.
fn counts(run: &Finished) -> [u64; 3] {
    let output = run.output();
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix("hold: "))
        .expect("hold says its counts");
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    numbers.try_into().expect("three numbers")
}

/// One line names the node and how many pages went with it.
fn expect_message(run: &Finished, node: &Node) {
    run.expect_told(
        "memory node ADDR is lost: REASON; N pages of PROG (PID) had their only copy there,",
    );
    let says = |line: &&str| line.contains(&node.address) && line.contains("pages");
    let line = run.stderr.lines().find(says);
    let line = line.unwrap_or_else(|| panic!("nothing names {}: {}", node.address, run.stderr));
    assert!(line.contains("the peer disconnected or died"), "{line}");
    let rest = line.replace(&node.address, "");
    let pages = rest
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok());
    assert!(pages.max().unwrap_or(0_u64) > 1000, "{line}");
}

// P-27
#[test]
fn a_lost_page_ends_the_program_with_sigbus() {
    let mut node = Node::start("256MiB");
    let mut run = holding(&[&node], false);
    node.kill();
    run.write(b"go\n");
    let run = run.finish();
    assert_eq!(run.code(), Some(128 + 7), "{}", run.stderr);
    assert_eq!(run.stat("exit_status"), 128 + 7);
    assert!(run.stat("pages_lost") > 0);
    expect_message(&run, &node);
}

#[test]
fn a_program_that_handles_sigbus_gets_all_other_pages_right() {
    let mut node = Node::start("256MiB");
    let mut run = holding(&[&node], true);
    node.kill();
    run.write(b"go\n");
    let run = run.finish().expect_code(0);
    let [right, lost, wrong] = counts(&run);
    assert_eq!((right + lost, wrong), (PAGES, 0));
    // What does not fit the cache was at the node, and what fits was not.
    assert!(
        lost >= PAGES / 4 && right >= PAGES / 4,
        "{right} right, {lost} lost"
    );
    expect_message(&run, &node);
}

#[test]
fn pages_at_another_node_are_not_lost() {
    let mut lost_node = Node::start("256MiB");
    let other = Node::start("256MiB");
    let mut run = holding(&[&lost_node, &other], true);
    lost_node.kill();
    run.write(b"go\n");
    let run = run.finish().expect_code(0);
    let [right, lost, wrong] = counts(&run);
    assert_eq!((right + lost, wrong), (PAGES, 0));
    assert!(!run.stderr.contains(&other.address), "{}", run.stderr);
}

/// A shell that waits for a line, and then lets programs fill and check more memory than the cache, one after the
/// other.
fn waiting_shell(nodes: &str, programs: &str) -> Running {
    let command = format!(
        "echo ready; read line; for n in {programs}; do \"$0\" --bytes 24MiB --operations 100 --seed $n --phase \
         touch || exit; done"
    );
    let pattern = test_program("pattern");
    let run = Run::far("bash")
        .arguments(["-c".as_ref(), command.as_ref(), pattern.as_os_str()])
        .option("--nodes", nodes)
        .cache_mib(12)
        .start();
    run.wait_for_output("ready\n");
    run
}

/// They have, all of them, on far memory.
fn expect_all_right(mut run: Running, programs: usize) -> Finished {
    run.write(b"\n");
    let run = run.finish().expect_code(0).expect_far_pages();
    let output = run.output();
    let right = output.lines().filter(|line| line.ends_with(" 0 wrong"));
    assert_eq!(right.count(), programs, "{output}");
    assert_eq!(run.stat("processes_local"), 0);
    run
}

/// Lost: they ran without far memory and without a limit.
#[test]
fn programs_that_start_after_a_node_is_lost_use_the_others() {
    let mut node = Node::start("256MiB");
    let other = Node::start("256MiB");
    let run = waiting_shell(&format!("{},{}", node.address, other.address), "1 2 3");
    node.kill();
    let run = expect_all_right(run, 3);
    run.expect_told("memory node ADDR is lost: REASON; nothing of PROG (PID) was there,");
    let told = run.stderr.matches("is lost").count();
    assert_eq!(told, 1, "{}", run.stderr);
}

/// Lost: one node that was not there was a reason to start nothing.
#[test]
fn a_run_begins_without_a_node_that_is_not_there_and_uses_it_when_it_is() {
    let other = Node::start("8MiB");
    let absent = Node::unused_address();
    let run = waiting_shell(&format!("{absent},{}", other.address), "1");
    run.wait_for_message("the run begins without it");
    let node = Node::start_at("256MiB", &absent);
    let run = expect_all_right(run, 1);
    run.expect_told("memory node ADDR: REASON; the run begins without it");
    assert!(!run.stderr.contains("is lost"), "{}", run.stderr);
    assert!(node.terminate().success());
}

/// Changes a bit of every page that the node has, as bad memory would, and returns how many.
fn damage_pages(node: &Node) -> u64 {
    let directory = format!("/proc/{}", node.process().pid);
    let maps = fs::read_to_string(format!("{directory}/maps")).unwrap();
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("{directory}/mem"))
        .unwrap();
    // Extents are memory that the node shares with the agents.
    let shared = maps.lines().filter(|line| line.contains(" rw-s "));
    let mut slot = [0; SLOT_STRIDE];
    let mut damaged = 0;
    for line in shared {
        let range = line.split_once(' ').and_then(|(it, _)| it.split_once('-'));
        let (start, end) = range.expect("a range of addresses");
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        for at in (number(start)..number(end)).step_by(SLOT_STRIDE) {
            if memory.read_exact_at(&mut slot, at).is_err() || !is_written(&slot) {
                continue;
            }
            let byte = SLOT_HEADER_SIZE + 1234;
            let changed = [slot[byte] ^ 0x10];
            memory.write_all_at(&changed, at + byte as u64).unwrap();
            damaged += 1;
        }
    }
    damaged
}

#[test]
fn a_page_that_changed_at_its_node_is_lost_and_never_read() {
    let node = Node::start("256MiB");
    let mut run = holding(&[&node], true);
    let damaged = damage_pages(&node);
    assert!(damaged >= PAGES / 4, "{damaged} pages were at the node");
    run.write(b"go\n");
    let run = run.finish().expect_code(0);
    let [right, lost, wrong] = counts(&run);
    assert_eq!((right + lost, wrong), (PAGES, 0), "{}", run.stderr);
    assert!(lost >= PAGES / 4, "{lost} lost of {damaged} damaged");
    assert_eq!(run.stat("pages_rejected"), run.stat("pages_lost"));
    let message = format!("{} gave back what is not it", node.address);
    assert!(run.stderr.contains(&message), "{}", run.stderr);
    // Not one for each page.
    let told = run.stderr.matches(&message).count();
    assert!(told < 24, "{}", run.stderr);
    run.expect_told(
        "PROG (PID): the page at PLACE is lost: ADDR gave back what is not it (REASON), and there is no other copy;",
    );
    run.expect_told(
        "PROG (PID): the page at PLACE is lost: ADDR gave back what is not it (REASON), and there is no other copy, as",
    );
}

#[test]
fn a_node_that_is_lost_idle_harms_nothing() {
    let mut node = Node::start("256MiB");
    let mut run = Run::far(test_program("hold"))
        .arguments(["--bytes", "16MiB"])
        .at(&[&node])
        .cache_mib(64)
        .start();
    run.wait_for_output("ready");
    node.kill();
    run.write(b"go\n");
    let run = run.finish().expect_code(0);
    assert_eq!(counts(&run), [16 * 256, 0, 0]);
}
