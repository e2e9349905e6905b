//! Runs cases one after another, each in a new image of this program.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A case that takes this long has hung. On a machine with fifty tasks for two CPUs a case that runs
/// for 50 ms has waited 19 s for a CPU.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(chosen: &str) -> ExitCode {
    let mut failed = 0;
    for name in chosen.split(',') {
        if !run_one(name) {
            failed += 1;
        }
    }
    ExitCode::from(u8::from(failed > 0))
}

/// The own arguments, but for the list of cases, are the case's.
fn command(name: &str) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--case" {
            arguments.next();
        } else {
            command.arg(argument);
        }
    }
    command
        .args(["--case", name, "--alone"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    Ok(command)
}

fn run_one(name: &str) -> bool {
    let begin = Instant::now();
    let mut child = match command(name).and_then(|mut command| command.spawn()) {
        Ok(child) => child,
        Err(error) => {
            println!("{name}: not started: {error}");
            return false;
        }
    };
    let text = collect(&mut child);
    // The output ends when every process of the case has ended, daemons included.
    let output = text.recv_timeout(LIMIT).ok();
    let threads = if output.is_none() {
        threads_of(child.id())
    } else {
        String::new()
    };
    if output.is_none() {
        // SAFETY: kill takes numbers; the group is the case's own.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
    }
    let status = child.wait();
    if std::env::var_os("SEMANTICS_TIMES").is_some() {
        eprintln!("{name}: {} ms", begin.elapsed().as_millis());
    }
    match (output, status) {
        (None, _) => {
            println!("{name}: hangs; {threads}");
            false
        }
        (Some(output), Ok(status)) if status.success() && !output.is_empty() => {
            print!("{output}");
            output
                .lines()
                .all(|line| line.contains(": ok") || line.contains(": skipped"))
        }
        (Some(output), status) => {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            println!("{name}: {status}; {}", output.trim_end());
            false
        }
    }
}

/// Where the threads of a case wait, and for how long each has run and has waited for a CPU
/// (nanoseconds; Documentation/scheduler/sched-stats.rst).
fn threads_of(process: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let threads = tasks.into_iter().flatten().flatten().map(|task| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (place, call, times) = (read("wchan"), read("syscall"), read("schedstat"));
        format!(
            "{}: in '{place}', system call {}, ran and waited {}",
            task.file_name().display(),
            call.trim_end(),
            times.trim_end()
        )
    });
    threads.collect::<Vec<_>>().join("; ")
}

fn collect(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(mut stream) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stream.read_to_end(&mut bytes);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            // Nobody waits for it any more if it came too late.
            let _ = sender.send(match read {
                Ok(_) => text,
                Err(error) => format!("unreadable: {error}"),
            });
        });
    }
    receiver
}
