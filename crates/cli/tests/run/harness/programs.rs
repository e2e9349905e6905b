//! Where the programs are.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) fn legato() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_legato"))
}

/// One of the workspace's own test programs. Cargo does not build another package's programs for this
/// package's tests. They are not built here: that would wait for cargo's lock while other tests run, and
/// change what those use.
pub(crate) fn test_program(name: &str) -> PathBuf {
    let directory = std::env::var_os("LEGATO_TEST_PROGRAMS");
    let program = directory.map(|directory| Path::new(&directory).join(name));
    program
        .filter(|program| program.is_file())
        .unwrap_or_else(|| panic!("no test program {name}: start the tests with scripts/test"))
}

/// A static program from C source, by `cc` or `musl-gcc`.
pub(crate) fn static_c(compiler: &str, source: &str) -> PathBuf {
    compiled_c(compiler, &["-static"], source)
}

/// A program from C source, by `cc` or `musl-gcc`.
pub(crate) fn compiled_c(compiler: &str, options: &[&str], source: &str) -> PathBuf {
    let directory = test_directory();
    let file = directory.join("program.c");
    fs::write(&file, source).unwrap();
    let program = directory.join("program");
    let mut command = Command::new(system_program(compiler));
    command
        .arg("-O1")
        .args(options)
        .arg("-o")
        .args([&program, &file]);
    assert!(command.status().unwrap().success(), "{source}");
    program
}

/// A static program from Go source.
pub(crate) fn compiled_go(source: &str) -> PathBuf {
    let directory = test_directory();
    fs::write(directory.join("program.go"), source).unwrap();
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
    let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(all).unwrap();
    loop {
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let directory = all.join(name);
        match fs::create_dir(&directory) {
            Ok(()) => return directory,
            // Left by a test that had the same pid.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{}: {error}", directory.display()),
        }
    }
}

/// Every user may enter it, unlike the build directory.
#[derive(Debug)]
pub(crate) struct EnterableDirectory(pub(crate) PathBuf);

impl EnterableDirectory {
    pub(crate) fn new() -> Self {
        let name = test_directory();
        let name = name.file_name().unwrap().to_string_lossy().into_owned();
        let directory = std::env::temp_dir().join(format!("legato-test-{name}"));
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        Self(directory)
    }
}

impl Drop for EnterableDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
