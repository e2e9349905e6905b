//! What the command says of itself, its defaults in the environment, and what becomes of what it prints.

use crate::harness::messages::expect_refused;
use crate::harness::{Run, legato, test_directory};
use rustix::pipe::pipe;
use serde_json::Value;
use std::fs;
use std::process::{Command, Output, Stdio};

fn output_of(arguments: &[&str]) -> Output {
    Command::new(legato()).args(arguments).output().unwrap()
}

/// What it prints, and nothing else.
#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let output = output_of(arguments);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), told.as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap()
}

const COMMANDS: [&str; 10] = [
    "run",
    "ps",
    "node",
    "secret",
    "net",
    "doctor",
    "sim",
    "bench",
    "completions",
    "manual",
];
/// Commands and options with which Legato starts itself.
const OF_ITS_OWN: [&str; 5] = ["launch", "keep", "touch", "read-target", "--embedded"];

#[test]
fn help_names_the_commands_and_what_a_status_means() {
    let help = printed(&["--help"]);
    for command in COMMANDS {
        let is_row = |line: &str| line.trim_start().starts_with(&format!("{command} "));
        assert!(help.lines().any(is_row), "no {command} in: {help}");
    }
    assert!(help.contains("LEGATO_CACHE"), "{help}");
    let run = printed(&["run", "--help"]);
    for word in [
        "--cache <SIZE>",
        "[default: 1GiB]",
        "--far <SIZE>",
        "--nodes <ADDR,...>",
        "--secret-file <FILE>",
        "--stats <FILE>",
        "128+N",
        "125 ",
        "126 ",
        "127 ",
        "SIGTERM",
    ] {
        assert!(run.contains(word), "no {word} in: {run}");
    }
    assert_eq!(
        printed(&["--version"]),
        format!("legato {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn an_option_has_a_default_in_the_environment() {
    let stats = test_directory().join("stats");
    let run = |options: &[&str]| {
        let mut command = Command::new(legato());
        command
            .arg("run")
            .args(options)
            .args(["--", "echo", "it ran"]);
        // What is for other commands, the nodes that this one starts among them, changes nothing.
        let environment = [
            ("LEGATO_CACHE", "32MiB"),
            ("LEGATO_FAR", "64MiB"),
            ("LEGATO_QUIET", "yes"),
            ("LEGATO_MEMORY", "1"),
            ("LEGATO_LISTEN", "nowhere"),
            ("LEGATO_JSON", "yes"),
        ];
        command.envs(environment).env("LEGATO_STATS", &stats);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), told.as_str()), (Some(0), ""));
        assert_eq!(output.stdout, b"it ran\n");
        let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        stats["cache_bytes_limit"].as_u64().unwrap() >> 20
    };
    assert_eq!(run(&[]), 32);
    assert_eq!(run(&["--cache", "48MiB"]), 48);
}

#[test]
fn a_mistake_in_the_environment_is_one_line() {
    let run = Run::plain(legato()).arguments(["run", "echo", "started"]);
    let run = run.environment("LEGATO_CACHE", "plenty").finish();
    let run = run.expect_code(125);
    assert_eq!(run.output(), "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    run.expect_told("TEXT; in the environment");
    for word in ["'plenty'", "in the environment: LEGATO_CACHE"] {
        assert!(run.stderr.contains(word), "no {word} in: {}", run.stderr);
    }
}

#[test]
fn a_shell_completes_commands_and_options() {
    let script = r#"
        source <("$0" completions bash) || exit 1
        of() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _legato legato "${!#}" "${COMP_WORDS[$# - 2]}"
            echo "${COMPREPLY[*]}"
        }
        of legato ""
        of legato doc
        of legato run --ca
        of legato run --idle-poll n
        of legato bench ""
    "#;
    let mut bash = Command::new("bash");
    let output = bash.args(["-c", script]).arg(legato()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    for command in COMMANDS {
        assert!(lines[0].contains(&command), "no {command} in: {text}");
    }
    assert_eq!(lines[1..4], [["doctor"], ["--cache"], ["never"]]);
    assert!(lines[4].contains(&"fault"), "{text}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        let mut words = script.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let found = words.find(|word| OF_ITS_OWN.contains(word));
        assert_eq!(found, None, "for {shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = test_directory().join("man").join("man1");
    let path = directory.to_str().unwrap();
    // Twice: pages of before are replaced.
    assert_eq!(printed(&["manual", path]) + &printed(&["manual", path]), "");
    let page = |name: &str| fs::read_to_string(directory.join(name));
    for command in COMMANDS {
        let text = page(&format!("legato-{command}.1")).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{text}");
    }
    let run = page("legato-run.1").unwrap();
    assert!(
        run.contains("Exit status") && run.contains("cache"),
        "{run}"
    );
    assert!(page("legato-bench-fault.1").is_ok() && page("legato.1").is_ok());
    assert!(page("legato-keep.1").is_err() && page("legato-bench-touch.1").is_err());
    let file = test_directory().join("file");
    fs::write(&file, "").unwrap();
    let mut manual = Command::new(legato());
    let told = expect_refused(
        manual.arg("manual").arg(&file),
        2,
        "WHAT: REASON; check the path",
    );
    assert!(told.contains("EEXIST"), "{told}");
}

/// The end of a pipe that nobody reads.
fn unread() -> Stdio {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn output_that_nobody_reads_ends_the_command_without_a_word() {
    const OF_SIGPIPE: i32 = 128 + 13;
    for arguments in [
        &["sim", "--list"][..],
        &["sim", "--seed", "1", "--steps", "50"],
        &["net", "devices", "--json"],
        &["doctor", "--no-bench"],
        &["secret", "new"],
        &["completions", "zsh"],
    ] {
        let mut command = Command::new(legato());
        let output = command
            .args(arguments)
            .stdout(unread())
            .stderr(Stdio::piped());
        let output = output.spawn().unwrap().wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), told.as_str()),
            (Some(OF_SIGPIPE), ""),
            "{arguments:?}"
        );
    }
}

#[test]
fn output_that_cannot_be_written_is_told() {
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = Command::new(legato());
    let command = command.args(["net", "devices"]).stdout(full);
    let output = command.stderr(Stdio::piped()).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "legato: standard output cannot be written: no space left on device (ENOSPC); make room, or name \
         another place\n"
    );
}

/// The summary, and what is said in between, is no reason to end what runs.
#[test]
fn messages_that_nobody_reads_change_nothing() {
    let script = "sort -rn <(seq 200000) | md5sum; (sleep 1.5 &) ; exit 7";
    for options in [
        &["--cache", "32MiB", "--far", "128MiB"][..],
        &["--cache", "no"],
    ] {
        let mut command = Command::new(legato());
        command
            .arg("run")
            .args(options)
            .args(["--", "bash", "-c", script]);
        let command = command.stderr(unread()).stdout(Stdio::piped());
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let refused = options.len() == 2;
        assert_eq!(output.status.code(), Some(if refused { 125 } else { 7 }));
        assert_eq!(output.stdout.is_empty(), refused);
    }
}
