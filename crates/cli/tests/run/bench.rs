//! `legato bench fault` on this machine. What is measured is not looked at.

use crate::harness::{Run, legato};
use serde_json::Value;

fn bench(arguments: &[&str]) -> Run {
    Run::plain(legato())
        .arguments(["bench", "fault", "--cache", "8MiB", "--rounds", "1"])
        .arguments(["--times", "2", "--swap", "none"])
        .arguments(arguments)
}

#[test]
fn two_versions_are_compared_in_all_ways_of_touching() {
    let other = legato().to_str().unwrap();
    let run = bench(&["--order", "random", "--access", "read,write"])
        .arguments(["--threads", "1,2", "--passes", "2", "--json"])
        .arguments(["--other", other])
        .finish()
        .expect_code(0);
    let report: Value = serde_json::from_str(&run.output()).unwrap();
    let told = report["workloads"].as_array().unwrap().iter();
    let ways: Vec<_> = told
        .map(|row| {
            for contender in ["legato_us", "other_us", "plain_us"] {
                assert!(row[contender]["median"].as_f64().unwrap() > 0.0, "{row}");
            }
            assert!(row["legato_over_other"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row.get("zram_us").is_none(), "{row}");
            (
                row["access"].as_str().unwrap(),
                row["threads"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(ways, [("read", 1), ("read", 2), ("write", 1), ("write", 2)]);
    assert_eq!(report["missing"], Value::Array(Vec::new()));
}

#[test]
fn another_version_that_cannot_run_is_said_to_be_missing() {
    let run = bench(&["--order", "seq", "--other", "/nowhere/legato"])
        .finish()
        .expect_code(0);
    let text = run.output();
    assert!(
        text.contains("\nother is missing: the toucher could not be run"),
        "{text}"
    );
}
