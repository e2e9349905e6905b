//! `legato doctor` on this machine, and for users who may do less.

use crate::harness::{Run, legato};
use crate::masks::unprivileged;
use serde_json::Value;

const CHECKS: [&str; 24] = [
    "kernel",
    "userfaultfd",
    "userfaultfd for others",
    "events",
    "move",
    "write-protect",
    "pagemap",
    "poison",
    "pagemap-scan",
    "exact-rss",
    "seccomp",
    "ptrace",
    "processors",
    "idle processors",
    "memory",
    "cgroup",
    "overcommit",
    "swap",
    "huge pages",
    "shared memory",
    "descriptors",
    "locked memory",
    "mappings",
    "RDMA",
];

fn doctor() -> Run {
    Run::plain(legato()).arguments(["doctor"])
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("--json prints JSON")
}

/// The verdict of one check.
fn verdict<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    check.expect(name)["verdict"].as_str().unwrap()
}

#[test]
fn doctor_names_every_check_and_speed() {
    let run = doctor().finish().expect_code(0);
    let text = run.output();
    for name in CHECKS {
        let named = |line: &str| line.get(9..).is_some_and(|rest| rest.starts_with(name));
        assert!(text.lines().any(named), "no '{name}' in: {text}");
    }
    assert!(
        text.contains("UFFDIO_MOVE") && text.contains(" us\n"),
        "{text}"
    );
    assert!(!text.contains("not measured"), "{text}");
    assert!(
        text.contains("\nThis machine can run programs on far memory"),
        "{text}"
    );
}

#[test]
fn doctor_prints_json() {
    let run = doctor().arguments(["--json"]).finish().expect_code(0);
    let report = parse(&run.output());
    for name in CHECKS {
        assert_ne!(verdict(&report, name), "cannot", "{report}");
    }
    let speeds = report["speed"].as_array().unwrap();
    assert_eq!(speeds.len(), 6);
    for speed in speeds {
        assert!(speed["p50_ns"].as_u64().unwrap() > 0, "{speed}");
    }
}

#[test]
fn doctor_measures_nothing_if_told_so() {
    let run = doctor()
        .arguments(["--json", "--no-bench"])
        .finish()
        .expect_code(0);
    assert_eq!(parse(&run.output())["speed"].as_array().unwrap().len(), 0);
}

#[test]
fn doctor_shows_what_is_hidden() {
    let look = |mask: &str| {
        let run = doctor()
            .arguments(["--json", "--no-bench"])
            .environment("LEGATO_MASK_FEATURES", mask)
            .finish();
        (run.code(), parse(&run.output()))
    };
    let (code, report) = look("poison,pagemap-scan,exact-rss");
    assert_eq!(code, Some(0));
    assert_eq!(verdict(&report, "poison"), "warning");
    assert_eq!(verdict(&report, "pagemap-scan"), "warning");
    assert_eq!(verdict(&report, "exact-rss"), "warning");
    assert_eq!(verdict(&report, "move"), "ok");
    let (code, report) = look("move,protect");
    assert_eq!(code, Some(2));
    assert_eq!(verdict(&report, "move"), "cannot");
    let run = doctor()
        .environment("LEGATO_MASK_FEATURES", "mov")
        .finish()
        .expect_code(2);
    run.expect_told("LEGATO_MASK_FEATURES: no feature");
    assert!(run.stderr.contains("'mov'"), "{}", run.stderr);
}

#[test]
fn doctor_tells_a_user_without_rights_what_is_missing() {
    let run = unprivileged(&["doctor"]).expect_code(2);
    let text = run.output();
    assert!(text.contains("cannot   userfaultfd "), "{text}");
    for way in ["CAP_SYS_PTRACE", "legato allow-users"] {
        assert!(text.contains(way), "no '{way}' in: {text}");
    }
    assert!(text.contains("This machine cannot run"), "{text}");
}
