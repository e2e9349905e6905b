//! Runs the compiler on files that use the libraries of this workspace.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const LIBRARIES: [&str; 3] = ["legato_base", "legato_verbs", "legato_fabric"];

/// The compiler with the libraries that the tests of this workspace are linked with.
#[derive(Debug)]
pub(crate) struct Compiler {
    /// A name, and what cargo has made.
    libraries: Vec<(&'static str, PathBuf)>,
}

impl Compiler {
    /// Asks cargo where the libraries are. They are compiled by then, and it only tells: of the whole
    /// workspace, because in a part of it they could have other features.
    pub(crate) fn new() -> Self {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["build", "--release", "--locked", "--workspace", "--lib"])
            .args(["--quiet", "--message-format", "json"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let messages = String::from_utf8(output.stdout).unwrap();
        let messages: Vec<serde_json::Value> = messages
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let made = |name: &str| -> Option<PathBuf> {
            let message = messages
                .iter()
                .find(|message| message["target"]["name"] == name)?;
            // What another crate is compiled with; it lies beside what that needs in turn.
            let files = message["filenames"].as_array()?.iter();
            files
                .filter_map(|file| file.as_str())
                .find(|file| file.ends_with(".rmeta"))
                .map(PathBuf::from)
        };
        let library = |name| {
            (
                name,
                made(name).unwrap_or_else(|| panic!("cargo makes no {name}")),
            )
        };
        Self {
            libraries: LIBRARIES.map(library).into(),
        }
    }

    /// What the compiler says of a program, without what does not depend on it: where in a library
    /// something is, and how many errors there are. None if it compiles.
    pub(crate) fn complaint(&self, program: &Path) -> Option<String> {
        let output = self.compile(program);
        if output.status.success() {
            return None;
        }
        let said = String::from_utf8(output.stderr).unwrap();
        let said = said.split("\nerror: aborting due to").next().unwrap_or("");
        let lines = said
            .lines()
            .map(|line| match line.split_once("--> crates/") {
                Some((before, place)) => {
                    let file = place.split(':').next().unwrap_or(place);
                    format!("{before}--> crates/{file}\n")
                }
                None => format!("{line}\n"),
            });
        Some(lines.collect())
    }

    fn compile(&self, program: &Path) -> Output {
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        command
            .args(["--edition", "2024", "--crate-name", "program", "-Awarnings"])
            .args(["--color", "never", "--diagnostic-width", "140"])
            .args([
                "--emit",
                "metadata",
                "--out-dir",
                env!("CARGO_TARGET_TMPDIR"),
            ]);
        for (name, file) in &self.libraries {
            let directory = file.parent().unwrap().display();
            command.args(["--extern", &format!("{name}={}", file.display())]);
            command.args(["-L", &format!("dependency={directory}")]);
        }
        command.arg(program).output().unwrap()
    }
}
