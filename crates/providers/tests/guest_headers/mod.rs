//! What a test needs to compile a C program against rdma-core's headers: those of the guest
//! (`docs/testing.md` says how it is made), and a compiler.
#![allow(dead_code, reason = "each test program uses a part of this")]

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The script's status where the machine lacks something.
const UNAVAILABLE: i32 = 77;

/// rdma-core's headers and libraries, or `None` where this machine cannot have them, and then it has
/// been said so.
pub(crate) struct Headers {
    include: PathBuf,
}

impl Headers {
    pub(crate) fn find() -> Option<Self> {
        if is_set("LEGATO_SKIP_GUEST") {
            skip("LEGATO_SKIP_GUEST is set");
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/rdma-guest/prepare");
        let output = Command::new(script).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let missing = if output.status.code() == Some(UNAVAILABLE) {
            errors
                .lines()
                .last()
                .unwrap_or("no reason given")
                .to_owned()
        } else {
            assert!(output.status.success(), "prepare: {errors}");
            let image = String::from_utf8_lossy(&output.stdout);
            let include = Path::new(image.trim()).join("include");
            match Command::new("gcc").arg("--version").output() {
                Ok(_) => return Some(Self { include }),
                Err(error) => format!("gcc: {error}"),
            }
        };
        assert!(!is_set("LEGATO_REQUIRE_GUEST"), "{missing}");
        skip(&missing);
        None
    }

    /// Compiles and links C; `options` also names what else is included or linked.
    pub(crate) fn compile<I, S>(&self, sources: &[PathBuf], result: &Path, options: I)
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let output = Command::new("gcc")
            .args(["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror"])
            .arg("-isystem")
            .arg(&self.include)
            .args(options)
            .arg("-o")
            .arg(result)
            .args(sources)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "gcc: {errors}");
    }
}

pub(crate) fn is_set(name: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == "1")
}

/// Not with `println!`, which the test runner keeps to itself when a test passes.
fn skip(reason: &str) {
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED, no headers of rdma-core: {reason}"
    );
}

/// A directory of its own for what a test compiles, below cargo's for such things.
pub(crate) fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
