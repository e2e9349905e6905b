use super::{same_output_within_the_limit, source};
use crate::harness::{sized, system_program};

#[test]
fn node_finds_the_same_objects_and_buffers() {
    same_output_within_the_limit(system_program("node"), 20, |run| {
        run.arguments([source("map.js")])
            .arguments([sized("150000", "60000")])
    });
}
