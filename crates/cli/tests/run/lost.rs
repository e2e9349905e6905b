//! A memory node that dies takes the only copy of its pages with it: that is SIGBUS and a message,
//! never zeros and never a hang.

use crate::harness::{Finished, Node, Run, Running, test_program};

const PAGES: u64 = 128 * 256;

fn holding(nodes: &[&Node], catch: bool) -> Running {
    let addresses: Vec<_> = nodes.iter().map(|node| node.address.as_str()).collect();
    let run = Run::far(test_program("hold"))
        .arguments(["--bytes", "128MiB"])
        .arguments(catch.then_some("--catch-sigbus"))
        .option("--nodes", &addresses.join(","))
        .cache_mib(64)
        .start();
    run.wait_for_output("ready");
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
    let says = |line: &&str| line.contains(&node.address) && line.contains("pages");
    let line = run.stderr.lines().find(says);
    let line = line.unwrap_or_else(|| panic!("nothing names {}: {}", node.address, run.stderr));
    let rest = line.replace(&node.address, "");
    let pages = rest
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok());
    assert!(pages.max().unwrap_or(0_u64) > 1000, "{line}");
}

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

#[test]
fn a_node_that_is_lost_idle_harms_nothing() {
    let mut node = Node::start("256MiB");
    let mut run = Run::far(test_program("hold"))
        .arguments(["--bytes", "16MiB"])
        .option("--nodes", &node.address)
        .cache_mib(64)
        .start();
    run.wait_for_output("ready");
    node.kill();
    run.write(b"go\n");
    let run = run.finish().expect_code(0);
    assert_eq!(counts(&run), [16 * 256, 0, 0]);
}
