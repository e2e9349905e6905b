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

/// The same without a dynamic loader and at a fixed address.
pub(crate) fn static_test_program(name: &str) -> PathBuf {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let directory = legato().parent().unwrap().parent().unwrap().join("static");
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let flags = "-Ctarget-feature=+crt-static -Crelocation-model=static";
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--offline", "--release"])
            .args(["--package", "legato-test-programs"])
            // Named, so that the flags are not for what runs during the build.
            .args(["--target", TARGET, "--target-dir"])
            .arg(&directory)
            .env("RUSTFLAGS", flags)
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .current_dir(workspace())
            .status()
            .expect("cargo starts");
        assert!(status.success(), "the test programs do not build");
        directory.join(TARGET).join("release")
    });
    directory.join(name)
}

/// A static program from C source, by `cc` or `musl-gcc`.
pub(crate) fn static_c(compiler: &str, source: &str) -> PathBuf {
    let directory = test_directory();
    let file = directory.join("program.c");
    std::fs::write(&file, source).unwrap();
    let program = directory.join("program");
    let mut command = Command::new(system_program(compiler));
    command
        .args(["-O1", "-static", "-o"])
        .args([&program, &file]);
    assert!(command.status().unwrap().success(), "{source}");
    program
}

/// A static program from Go source.
pub(crate) fn compiled_go(source: &str) -> PathBuf {
    let directory = test_directory();
    std::fs::write(directory.join("program.go"), source).unwrap();
    let status = Command::new(system_program("go"))
        .args(["build", "-o", "program", "program.go"])
        .envs([("CGO_ENABLED", "0"), ("GO111MODULE", "off")])
        .envs([("GOFLAGS", ""), ("GOTOOLCHAIN", "local")])
        // Next to the build directory's other temporary files, to be found again by other tests.
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"))
        .current_dir(&directory)
        .status();
    assert!(status.unwrap().success(), "{source}");
    directory.join("program")
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

/// Debian's own Python, with its `test` package.
pub(crate) fn system_python() -> PathBuf {
    let python = PathBuf::from("/usr/bin/python3");
    assert!(
        python.is_file(),
        "no {}: run scripts/setup",
        python.display()
    );
    python
}

/// A source archive that `scripts/setup` has fetched.
pub(crate) fn archive(name: &str) -> PathBuf {
    let archive = workspace().join("target").join(name);
    assert!(
        archive.is_file(),
        "{} is missing: run scripts/setup",
        archive.display()
    );
    archive
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
