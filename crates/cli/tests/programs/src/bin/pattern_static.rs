//! The same without a dynamic loader and at a fixed address: see `scripts/rustc-for-tests`.

use std::process::ExitCode;

fn main() -> ExitCode {
    legato_test_programs::pattern::main()
}
