//! Every kind of mapping, and what can be done to it, by whom: the same on far memory as on local
//! memory.

use crate::harness::{Run, sized, test_program};

/// The lines of each case.
fn cases(output: &str) -> Vec<String> {
    let mut cases: Vec<String> = Vec::new();
    for line in output.lines() {
        match cases.last_mut() {
            Some(case) if line.starts_with(' ') => {
                case.push('\n');
                case.push_str(line);
            }
            _ => cases.push(line.to_owned()),
        }
    }
    cases
}

fn agrees(seed: &str, count: &str, hidden: &str) {
    let matrix = test_program("matrix");
    let which = ["--seed", seed, "--count", count];
    // Where nothing leaves it need not be pushed out.
    let plain = Run::plain(&matrix)
        .arguments(which)
        .arguments(["--bytes", "1MiB"])
        .finish()
        .expect_code(0);
    let run = Run::far(&matrix)
        .arguments(which)
        .arguments(["--bytes", "32MiB"])
        .environment("LEGATO_MASK_FEATURES", hidden)
        .cache_mib(16)
        .memory_mib(1024)
        .finish()
        .expect_code(0)
        .expect_far_pages();
    let [expected, found] = [plain.output(), run.output()].map(|output| cases(&output));
    assert_eq!(expected.len().to_string(), count);
    for (expected, found) in expected.iter().zip(&found) {
        let number = expected.split(' ').next().unwrap_or_default();
        assert_eq!(
            expected, found,
            "of {number} and what runs beside it: matrix --seed {seed} --count {count} --bytes 32MiB\n{}",
            run.stderr
        );
    }
    assert_eq!(expected.len(), found.len(), "{}", run.stderr);
}

#[test]
fn matrix_agrees_with_local_memory() {
    for seed in sized(&["1", "2", "3", "4"][..], &["1"]) {
        agrees(seed, sized("960", "192"), "");
    }
}

#[test]
fn matrix_agrees_without_move() {
    agrees("2", sized("960", "96"), "move");
}

#[test]
fn matrix_agrees_without_marks() {
    agrees("3", sized("960", "96"), "wp-unpopulated");
}

#[test]
fn matrix_cases_are_the_same_whichever_others_run_beside_them() {
    let output = |first: &str, count: &str| {
        let run = Run::plain(test_program("matrix"))
            .arguments(["--first", first, "--count", count, "--bytes", "1MiB"])
            .finish();
        cases(&run.expect_code(0).output())
    };
    // The order is that of the batches, in which those that the kernel refuses come first.
    let mut all = output("0", "192");
    let mut alone: Vec<String> = ["0", "50", "96", "150"]
        .map(|first| output(first, "42"))
        .concat();
    let is_among = |case: &String| alone.contains(case);
    all.retain(is_among);
    alone.sort_unstable();
    all.sort_unstable();
    assert_eq!(all, alone);
}

#[test]
fn matrix_sees_one_flipped_bit() {
    let output = |flip: &[&str]| {
        let run = Run::plain(test_program("matrix"))
            .arguments(["--count", "96", "--bytes", "1MiB"])
            .arguments(flip)
            .finish();
        cases(&run.expect_code(0).output())
    };
    let (right, wrong) = (output(&[]), output(&["--flip-bit"]));
    let differ = right
        .iter()
        .zip(&wrong)
        .filter(|(right, wrong)| right != wrong);
    let torn = differ.filter(|(_, wrong)| wrong.contains("TORN")).count();
    assert!(torn > 32, "{torn} of {}", right.len());
}
