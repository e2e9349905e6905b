//! Programs that were never written for this, with the same output as on local memory.

use crate::harness::{Run, conclusive, python, sized, system_program, test_directory};
use legato_base::Random;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

#[test]
fn numpy_gives_the_same_results() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/python/array_work.py");
    let run = |run: Run| {
        run.arguments([&script])
            .environment("OPENBLAS_NUM_THREADS", "2")
    };
    let plain = run(Run::plain(python())).finish().expect_code(0);
    let far = run(Run::far(python()).cache_mib(96).memory_mib(2048))
        .finish()
        .expect_code(0);
    assert_eq!(far.output(), plain.output());
    assert_eq!(plain.output().lines().count(), 5);
    far.expect_far_pages();
}

#[test]
fn sort_gives_the_same_file() {
    let directory = test_directory();
    let input = directory.join("input");
    fs::write(&input, lines(sized(1_200_000, 200_000))).unwrap();
    let run = |run: Run, output: &Path| {
        // -S keeps all lines in memory; the temporary directory stays empty.
        run.arguments(["--parallel=2", "-S", "1G", "-o"])
            .arguments([output, &input])
            .environment("LC_ALL", "C")
            .finish()
            .expect_code(0)
    };
    let (plain, far) = (directory.join("plain"), directory.join("far"));
    let sort = system_program("sort");
    run(Run::plain(&sort), &plain);
    let sorted_far = || {
        let report = run(
            Run::far(&sort)
                .cache_mib(sized(64, 16))
                .memory_mib(sized(2048, 512)),
            &far,
        );
        let same = fs::read(&plain).unwrap() == fs::read(&far).unwrap();
        assert!(same, "the sorted files differ");
        report
    };
    // It is over in a fraction of a second, in which its agent may not have got a processor.
    conclusive(sorted_far, |report| match report.stat("far_pages_peak") {
        0 => Err("nothing went far".to_owned()),
        _ => Ok(()),
    });
    fs::remove_dir_all(&directory).unwrap();
}

/// Lines of about 50 bytes.
fn lines(count: usize) -> String {
    let mut random = Random::from_seed(50);
    let mut text = String::new();
    for _ in 0..count {
        let (key, rest) = (random.next_u64(), u128::from(random.next_u64()) << 60);
        writeln!(text, "{key:016x} {rest:032x}").unwrap();
    }
    text
}
