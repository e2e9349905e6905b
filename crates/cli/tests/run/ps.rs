//! What runs, seen from outside (`legato ps`) and from the terminal (`--progress`).

use crate::harness::{PATIENCE, Process, Run, Running, legato, poll_until, system_python};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

/// More than the cache, read at random until standard input ends.
const FAULTING: &str = "\
import random, select, sys
far = bytearray(b'x') * (96 << 20)
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(2000): assert far[random.randrange(len(far))] == 120
";

fn faulting() -> Running {
    let run = Run::far(system_python()).arguments(["-c", FAULTING]);
    run.cache_mib(32).memory_mib(256).start()
}

fn ps(arguments: &[&str]) -> String {
    let output = Command::new(legato()).arg("ps").args(arguments).output();
    let output = output.unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), told.as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap()
}

/// Other tests have runs of their own.
fn seen(run: &Running) -> Option<Value> {
    let list: Value = serde_json::from_str(&ps(&["--json"])).unwrap();
    let pid = run.pid().as_raw_pid();
    let mut list = list.as_array().unwrap().iter();
    list.find(|seen| seen["pid"] == pid).cloned()
}

#[test]
fn a_run_is_listed_with_what_it_has_and_does() {
    let run = faulting();
    let mut found = Value::Null;
    poll_until("it faults", PATIENCE, || {
        found = seen(&run).unwrap_or_default();
        found["faults_per_second"].as_u64() > Some(0)
    });
    assert_eq!(found["command"].as_array().unwrap()[1], "-c");
    assert_eq!(found["cache_bytes_limit"], 32 << 20);
    assert_eq!(found["processes"], 1);
    let number = |name: &str| found[name].as_u64().unwrap();
    assert!(number("far_bytes_current") > 32 << 20, "{found}");
    assert!(number("local_bytes_current") > 8 << 20, "{found}");
    assert!(
        number("faults") > 0 && found["elapsed_ms"].is_u64(),
        "{found}"
    );
    let nodes = found["nodes"].as_array().unwrap();
    let is_embedded = |node: &Value| Process::find(node["pid"].as_i64().unwrap() as i32).is_some();
    assert!(nodes.len() == 2 && nodes.iter().all(is_embedded), "{found}");

    let text = ps(&[]);
    assert!(text.starts_with("PID "), "{text}");
    let own = format!("{} ", run.pid().as_raw_pid());
    let row = text.lines().find(|line| line.starts_with(&own)).unwrap();
    for word in [" of 32 MiB ", " 2 embedded ", "python3 -c import random"] {
        assert!(row.contains(word), "no '{word}' in: {row}");
    }
    // Lines of the script are one row.
    assert!(row.contains("sys?far"), "{row}");

    // Nobody is asked.
    let supervisor = Process::find(run.pid().as_raw_pid()).unwrap();
    supervisor.signal(Signal::STOP);
    assert!(seen(&run).is_some());
    supervisor.signal(Signal::CONT);
    let pid = run.pid();
    run.finish().expect_code(0).expect_far_pages();
    assert!(!ps(&[]).contains(&format!("{} ", pid.as_raw_pid())));
}

/// On a pseudo-terminal: reads until a line of progress is there, answers, and prints all that was shown.
const ON_A_TERMINAL: &str = "\
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0: os.execv(sys.argv[1], sys.argv[1:])
shown, answered = b'', False
while True:
    try: part = os.read(terminal, 4096)
    except OSError: break
    if not part: break
    shown += part
    if b'faults/s' in shown and not answered:
        answered = True
        os.write(terminal, b'go\\n')
print(ascii(shown.decode()), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";

#[test]
fn a_terminal_has_a_line_of_progress_that_gives_way() {
    let script = "read word; echo it said $word; exit 3";
    let run = Run::plain(system_python()).arguments(["-c", ON_A_TERMINAL]);
    let run = run
        .arguments([legato()])
        .arguments(["run", "--progress", "--cache", "16MiB"]);
    let run = run
        .arguments(["--far", "64MiB", "--", "sh", "-c", script])
        .finish();
    let shown = run.expect_code(0).output();
    assert!(shown.ends_with("' 3\n"), "{shown}");
    // The cursor goes back, and what comes next takes the line's place.
    let line = " of 16 MiB local, ";
    let (_, rest) = shown
        .split_once(line)
        .unwrap_or_else(|| panic!("no line in: {shown}"));
    assert!(rest.contains(r" faults/s\x1b[K\r"), "{shown}");
    let (_, summary) = rest
        .split_once(r"it said go\r\n")
        .unwrap_or_else(|| panic!("{shown}"));
    // Nothing of it is left before the summary.
    assert!(
        summary.starts_with(r"\x1b[K\rlegato: 1 process; far pages"),
        "{shown}"
    );
}

#[test]
fn without_a_terminal_a_short_run_says_nothing_of_its_progress() {
    let run = Run::plain(legato()).arguments(["run", "--progress", "--quiet", "--", "echo", "hi"]);
    let run = run.finish().expect_code(0);
    assert_eq!((run.output().as_str(), run.stderr.as_str()), ("hi\n", ""));
}
