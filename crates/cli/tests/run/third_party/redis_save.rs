use super::{same_output, source};
use crate::harness::system_python;

/// BGSAVE is a forked child that reads all of the server's memory while the server changes it.
#[test]
fn redis_saves_what_was_there_when_it_forked() {
    same_output(system_python(), 14, |run| {
        run.arguments([source("redis_save.py")])
            .arguments(["40000"])
    });
}
