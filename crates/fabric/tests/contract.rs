//! What a user of the buffers may and may not do, said by the compiler.
//!
//! Each file in `contract/misuse` does one thing that must not compile, and has the compiler's
//! words beside it; the file of the same name in `contract/use` does it properly, and compiles
//! with this one. The words are those of the toolchain in `rust-toolchain.toml`: after a change of
//! it run this with `LEGATO_TEST_ACCEPT=1`, and read what has changed.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

use compiler::Compiler;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;

#[path = "contract/compiler.rs"]
mod compiler;

#[path = "contract/use"]
#[allow(dead_code, unreachable_pub, reason = "that they compile is the test")]
mod proper {
    #[path = "clone_buffer.rs"]
    mod clone_buffer;
    #[path = "copy_buffer.rs"]
    mod copy_buffer;
    #[path = "deregister_before_events.rs"]
    mod deregister_before_events;
    #[path = "deregister_under_operations.rs"]
    mod deregister_under_operations;
    #[path = "deregister_under_slice.rs"]
    mod deregister_under_slice;
    #[path = "drop_under_operations.rs"]
    mod drop_under_operations;
    #[path = "post_twice.rs"]
    mod post_twice;
    #[path = "read_in_flight.rs"]
    mod read_in_flight;
    #[path = "slice_after_deregister.rs"]
    mod slice_after_deregister;
    #[path = "slice_outlives_region.rs"]
    mod slice_outlives_region;
    #[path = "slice_twice.rs"]
    mod slice_twice;
    #[path = "two_posters.rs"]
    mod two_posters;
    #[path = "two_threads.rs"]
    mod two_threads;
    #[path = "write_in_flight.rs"]
    mod write_in_flight;
}

fn names(folder: &str) -> BTreeSet<String> {
    let files = fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".rs")).collect()
}

// P-72
#[test]
fn misuse_of_buffers_does_not_compile() {
    let (misuse, proper) = (names("tests/contract/misuse"), names("tests/contract/use"));
    assert_eq!(misuse, proper, "each misuse has its proper use");
    let here = include_str!("contract.rs");
    for name in &proper {
        assert!(here.contains(&format!("\"{name}\"")), "{name} is compiled");
    }
    let compiler = Compiler::new();
    for name in misuse {
        let program = Path::new("tests/contract/misuse").join(name);
        let said = compiler.complaint(&program);
        let said = said.unwrap_or_else(|| panic!("{} compiles", program.display()));
        let known = program.with_extension("stderr");
        if env::var_os("LEGATO_TEST_ACCEPT").is_some() {
            fs::write(&known, &said).unwrap();
        }
        let expected = fs::read_to_string(&known).unwrap_or_default();
        assert_eq!(said, expected, "{}, left: what is said", known.display());
    }
}
