//! Lua built with make and gcc, two jobs at a time: compilers that come and go by fork and exec.
//!
//! Of the cache each process of the tree takes about a MiB, and the relocated pages of the libraries
//! of `ar` and `ld` stay local: LLVM alone has 8 MiB of them, where its plugin is installed. The rest
//! is much less than two compilers use.

use super::{same_output, source};
use crate::harness::{archive, system_program};

#[test]
fn make_and_gcc_build_the_same_objects() {
    same_output(system_program("sh"), 24, |run| {
        run.arguments([source("build.sh"), archive("lua.tar.gz")])
            .arguments(["-O0"])
    });
}
