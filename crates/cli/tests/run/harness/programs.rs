//! Where the programs are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) fn legato() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_legato"))
}

/// One of the workspace's own test programs.
///
/// `cargo test -p legato-cli` does not build another package's binaries, so they are built here,
/// once, with the profile and into the directory of the binary under test.
pub(crate) fn test_program(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = legato().parent().unwrap();
        let profile = match directory.file_name().and_then(|name| name.to_str()) {
            Some("debug") => "dev",
            Some(name) => name,
            None => "dev",
        };
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let status = Command::new(cargo)
            .args([
                "build",
                "--quiet",
                "--offline",
                "--package",
                "legato-test-programs",
            ])
            .args(["--profile", profile, "--target-dir"])
            .arg(directory.parent().unwrap())
            .current_dir(workspace())
            .status()
            .expect("cargo starts");
        assert!(status.success(), "the test programs do not build");
        directory.to_owned()
    });
    directory.join(name)
}

/// A program that the system or `scripts/setup` has installed.
pub(crate) fn system_program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed: run scripts/setup"))
}

/// The Python with NumPy that `scripts/setup` has made.
pub(crate) fn python() -> PathBuf {
    let python = workspace().join("target/venv/bin/python");
    assert!(
        python.is_file(),
        "{} is missing: run scripts/setup",
        python.display()
    );
    python
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
}

/// A new, empty directory of this test's own, inside the build directory.
pub(crate) fn test_directory() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
