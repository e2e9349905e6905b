use super::{same_output_within_the_limit, source};
use crate::harness::{sized, system_program};

#[test]
fn perl_sorts_joins_and_splits_the_same_records() {
    same_output_within_the_limit(system_program("perl"), 20, |run| {
        run.arguments([source("records.pl")])
            .arguments([sized("120000", "60000")])
    });
}
