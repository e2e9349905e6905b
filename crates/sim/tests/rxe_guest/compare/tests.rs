//! The comparison must be able to fail, in each of its ways.

use super::{Deviations, Races, Trace, compare};

const REFERENCE: &str = "kernel 6\n\
    T1 first: sends=1:0 events=none\n\
    T1 merge: order=r1,s1\n\
    T2 second: sends=1:12,2:5\n\
    T2 third: state=ERR\n";
const RACES: &str = "T1 merge | order=r1,s1\nT1 merge | order=s1,r1\n";

/// What is wrong between the reference and the reference with `from` replaced by `to`.
fn wrong(from: &str, to: &str, deviations: &str) -> Vec<String> {
    assert!(REFERENCE.contains(from), "{from}");
    compare(
        &Trace::parse(REFERENCE).unwrap(),
        &Trace::parse(&REFERENCE.replace(from, to)).unwrap(),
        &Races::parse(RACES).unwrap(),
        &Deviations::parse(deviations).unwrap(),
    )
}

fn one(wrong: &[String], part: &str) {
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains(part), "{wrong:?}");
}

#[test]
fn equal_lines_agree() {
    assert_eq!(wrong("", "", ""), [""; 0]);
    assert_eq!(wrong("kernel 6", "kernel 7", ""), [""; 0]);
}

#[test]
fn a_missing_line_is_seen() {
    one(&wrong("T2 third: state=ERR\n", "", ""), "T2 third: missing");
}

#[test]
fn an_extra_line_is_seen() {
    let extra = "T2 third: state=ERR\nT3 new: a=1\n";
    one(
        &wrong("T2 third: state=ERR\n", extra, ""),
        "T3 new: not in the reference",
    );
}

#[test]
fn a_changed_value_is_seen() {
    one(&wrong("1:12,2:5", "1:12", ""), "found     sends=1:12");
}

#[test]
fn a_deviation_allows_its_own_value_only() {
    let table = "T2 second | sends=1:5,2:5 | rxe hides the cause";
    assert_eq!(wrong("1:12,2:5", "1:5,2:5", table), [""; 0]);
    one(&wrong("1:12,2:5", "1:4,2:5", table), "deviation sends=1:5");
}

#[test]
fn a_stale_deviation_is_seen() {
    one(
        &wrong("", "", "T2 second | sends=1:5,2:5 | it did once"),
        "it no longer differs",
    );
    one(
        &wrong("", "", "T2 third | - | it was missing"),
        "it is there",
    );
    one(&wrong("", "", "T9 none | a=1 | reason"), "neither side");
    one(&wrong("", "", "T9 none | - | reason"), "neither side");
    one(&wrong("", "", "T9* | - | reason"), "begins so");
    one(
        &wrong("", "", "T2 third | state=ERR | no difference"),
        "what the reference allows",
    );
}

#[test]
fn missing_and_extra_lines_can_be_deviations() {
    let without = "T2 second: sends=1:12,2:5\nT2 third: state=ERR\n";
    assert_eq!(wrong(without, "", "T2 * | - | not built"), [""; 0]);
    one(
        &wrong("T2 third: state=ERR\n", "", "T2 * | - | not built"),
        "T2 second is there",
    );
    let missing = "T2 third | - | no such state";
    assert_eq!(wrong("T2 third: state=ERR\n", "", missing), [""; 0]);
    let more = "T2 third: state=ERR\nT3 new: a=1\n";
    let known = "T3 new | a=1 | it can do more";
    assert_eq!(wrong("T2 third: state=ERR\n", more, known), [""; 0]);
    let gone = wrong("T2 third: state=ERR\n", "", "T2 third | state=RTS | x");
    assert_eq!(gone.len(), 2, "{gone:?}");
}

#[test]
fn a_race_allows_its_values_only() {
    assert_eq!(wrong("r1,s1", "s1,r1", ""), [""; 0]);
    one(&wrong("r1,s1", "s1", ""), "found     order=s1");
    let reference = Trace::parse(REFERENCE).unwrap();
    let races = |text| {
        let races = Races::parse(text).unwrap();
        compare(&reference, &reference, &races, &Deviations::none())
    };
    one(&races("T9 x | a\nT9 x | b"), "not in the reference");
    let others = races("T1 merge | order=x\nT1 merge | order=y");
    assert!(others.iter().any(|one| one.contains("does not allow")));
}

#[test]
fn what_cannot_be_read_is_refused() {
    assert!(Trace::parse("T1 no value").is_err());
    assert!(Trace::parse("T1 a: 1\nT1 a: 1").is_err());
    assert!(Races::parse("T1 a | 1").is_err());
    assert!(Deviations::parse("T1 a | 1").is_err());
    assert!(Deviations::parse("T1 a | 1 | ").is_err());
    assert!(Deviations::parse("T1* | 1 | reason").is_err());
    assert!(Deviations::parse("T1 a | 1 | x\nT1 a | 2 | y").is_err());
}
