use super::{same_output_within_the_limit, source};
use crate::harness::system_program;

#[test]
fn sqlite_answers_the_same_from_memory() {
    let read = format!(".read {}", source("table.sql").display());
    same_output_within_the_limit(system_program("sqlite3"), 8, |run| {
        run.arguments([
            ":memory:",
            "PRAGMA temp_store = MEMORY",
            ".parameter set @rows 200000",
        ])
        .arguments([&read])
    });
}
