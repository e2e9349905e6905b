//! The structures and constants of libibverbs and librdmacm as the provider has them, against
//! rdma-core's own headers.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod constants;
#[path = "../guest_headers/mod.rs"]
mod guest_headers;

use constants::constants;
use guest_headers::{Headers, directory};
use legato_providers::ibverbs::layouts;
use std::path::Path;
use std::process::Command;

/// What the C program is asked, and what this side would say, line by line.
fn questions_and_answers() -> Vec<(String, String)> {
    let rows = layouts()
        .into_iter()
        .map(|(name, field, offset, size)| match field {
            "" => (format!("WHOLE({name})"), format!("{name} {size}")),
            field => (
                format!("FIELD({name}, {field})"),
                format!("{name} {field} {offset} {size}"),
            ),
        });
    let constants = constants()
        .into_iter()
        .map(|(name, value)| (format!("VALUE({name})"), format!("{name} {value}")));
    rows.chain(constants).collect()
}

#[test]
fn everything_is_as_the_headers_have_it() {
    let Some(headers) = Headers::find() else {
        return;
    };
    let (questions, own): (Vec<_>, Vec<_>) = questions_and_answers().into_iter().unzip();
    assert!(own.len() > 200, "only {} rows", own.len());
    let directory = directory("ibverbs_layout");
    std::fs::write(directory.join("rows.inc"), questions.join("\n")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ibverbs_layout/layout.c");
    let program = directory.join("layout");
    headers.compile(&[source], &program, [Path::new("-I"), &directory]);
    let output = Command::new(&program).output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<_> = text.lines().collect();
    assert_eq!(own, found);
}
