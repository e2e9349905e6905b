//! Python's own tests of what touches memory, processes and threads.

use crate::harness::{Finished, Run, sized, system_python};

#[test]
fn python_tests_of_mmap() {
    passes_its_tests(sized(8, 10), "test_mmap", &[]);
}

#[test]
fn python_tests_of_barriers_between_threads() {
    passes_its_tests(sized(10, 14), "test_threading", &["BarrierTests"]);
}

#[test]
fn python_tests_of_forked_pools() {
    let selected = sized(
        &["test_imap", "test_map", "test_starmap"][..],
        &["*WithProcessesTestPool.test_map"],
    );
    passes_its_tests(16, "test_multiprocessing_fork", selected);
}

#[test]
fn python_tests_of_subprocesses() {
    let selected = sized(
        &["test_communicate*", "test_preexec*"][..],
        &[
            "test_communicate",
            "test_communicate_pipe_buf",
            "test_communicate_eintr",
        ],
    );
    passes_its_tests(12, "test_subprocess", selected);
}

/// Runs what the names select of a module of the `test` package, as many tests as without Legato.
fn passes_its_tests(cache_mib: u64, module: &str, selected: &[&str]) {
    let arrange = |run: Run| {
        let run = run.arguments(["-m", "test", "-v", module]);
        selected
            .iter()
            .fold(run, |run, name| run.arguments(["-m", name]))
    };
    let plain = arrange(Run::plain(system_python())).finish().expect_code(0);
    let far = Run::far(system_python())
        .cache_mib(cache_mib)
        .memory_mib(1024);
    let far = arrange(far).finish().expect_code(0);
    assert_eq!(tests_run(&far), tests_run(&plain));
    far.expect_far_pages();
}

/// How many tests ran, as in "Ran 46 tests in 0.2s".
fn tests_run(done: &Finished) -> u64 {
    let said = format!("{}\n{}", done.output(), done.stderr);
    let count = said.lines().find_map(|line| {
        let (count, _) = line.strip_prefix("Ran ")?.split_once(" test")?;
        count.parse().ok()
    });
    let count = count.unwrap_or_else(|| panic!("no count of tests in {said}"));
    assert!(count > 0, "nothing was selected");
    count
}
