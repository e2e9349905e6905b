//! One program, plain or under `legato run`.

use super::capture::Capture;
use super::cgroup::Cgroup;
use super::hosts::Host;
use super::node::Node;
use super::process::{Process, descendants, marked};
use super::sampler::{Sampler, Seen};
use super::watchdog::{LOOK, watch};
use super::{
    DEADLINE, MIB, PATIENCE, legato, messages, poll_until, sized, started_by, test_directory,
};
use legato_base::PAGE_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};
use signal_hook::flag::register_conditional_shutdown;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// What to run, and how.
#[derive(Debug)]
pub(crate) struct Run {
    options: Option<BTreeMap<String, String>>,
    program: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    /// Between two looks at what its processes use.
    pause: Duration,
    /// Every socket is noted too.
    notes_sockets: bool,
    quiet: bool,
    /// Mappings that a process of it has.
    mappings: u64,
    /// What starts a program on another host or in a control group, or nothing.
    enter: Vec<String>,
}

/// Who starts the tests in the background or with nohup has them ignore signals, and so would every
/// program that they start. A handler is not inherited.
fn ignore_no_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [SIGINT, SIGQUIT, SIGHUP] {
            let always = Arc::new(AtomicBool::new(true));
            register_conditional_shutdown(signal, 128 + signal, always).unwrap();
        }
    });
}

impl Run {
    /// Under `legato run`.
    pub(crate) fn far(program: impl AsRef<OsStr>) -> Self {
        Self {
            options: Some(BTreeMap::new()),
            ..Self::plain(program)
        }
    }

    /// Without legato.
    pub(crate) fn plain(program: impl AsRef<OsStr>) -> Self {
        Self {
            options: None,
            program: vec![program.as_ref().to_owned()],
            environment: Vec::new(),
            // In a gate nothing is asserted of what is sampled, and looking takes a tenth of the time.
            pause: Duration::from_millis(sized(5, 100)),
            notes_sockets: false,
            quiet: true,
            // As many as take no memory to speak of.
            mappings: 0,
            enter: Vec::new(),
        }
    }

    pub(crate) fn arguments<S: AsRef<OsStr>>(
        mut self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        self.program.extend(
            arguments
                .into_iter()
                .map(|argument| argument.as_ref().to_owned()),
        );
        self
    }

    pub(crate) fn environment(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// An option of `legato run`, in place of an earlier one, with its value if it has one; nothing in a plain run.
    pub(crate) fn option(mut self, name: &str, value: &str) -> Self {
        if let Some(options) = &mut self.options {
            options.insert(name.to_owned(), value.to_owned());
        }
        self
    }

    /// A process of it has so many mappings.
    pub(crate) const fn mappings(mut self, count: u64) -> Self {
        self.mappings = count;
        self
    }

    pub(crate) fn cache_mib(self, size: u64) -> Self {
        self.option("--cache", &format!("{size}MiB"))
    }

    pub(crate) fn memory_mib(self, size: u64) -> Self {
        self.option("--far", &format!("{size}MiB"))
    }

    /// With its far memory at these nodes.
    pub(crate) fn at(self, nodes: &[&Node]) -> Self {
        let addresses: Vec<_> = nodes.iter().map(|node| node.address.as_str()).collect();
        self.option("--nodes", &addresses.join(","))
    }

    /// With the summary on standard error.
    pub(crate) fn with_summary(mut self) -> Self {
        self.quiet = false;
        self
    }

    /// In a soak sampled without a pause to speak of, for the tests of the limit.
    pub(crate) fn watched_closely(mut self) -> Self {
        self.pause = sized(Duration::from_micros(100), self.pause);
        self
    }

    /// All processes are found, and all their sockets.
    pub(crate) fn watched_for_leftovers(mut self) -> Self {
        self.pause = Duration::from_millis(5);
        self.notes_sockets = true;
        self
    }

    /// Inside a control group: the supervisor, its nodes and the programs.
    pub(crate) fn inside(mut self, group: &Cgroup) -> Self {
        self.enter = group.enter();
        self
    }

    /// On another host.
    pub(crate) fn on(mut self, host: &Host) -> Self {
        self.enter = host.enter();
        self
    }

    pub(crate) fn start(self) -> Running {
        ignore_no_signals();
        let directory = test_directory();
        let stats = directory.join("stats.json");
        let mark = format!("LEGATO_TEST_MARK={}", directory.display());
        let temporary = directory.join("temporary");
        std::fs::create_dir(&temporary).unwrap();
        let mut command = match &self.options {
            Some(options) => {
                let mut command = started_by(&self.enter, legato());
                command.arg("run").arg("--stats").arg(&stats);
                command.args(
                    options
                        .iter()
                        .flat_map(|(name, value)| [name, value])
                        .filter(|word| !word.is_empty()),
                );
                command
                    .args(self.quiet.then_some("--quiet"))
                    .arg("--")
                    .args(&self.program);
                command
            }
            None => {
                let mut command = Command::new(&self.program[0]);
                command.args(&self.program[1..]);
                command
            }
        };
        command
            .env("LEGATO_TEST_MARK", &directory)
            .env("TMPDIR", &temporary)
            .envs(self.environment)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{:?}: {error}", self.program));
        let root = Process::find(child.id() as i32);
        Running {
            stdin: child.stdin.take(),
            stdout: Capture::of(child.stdout.take().unwrap()),
            stderr: Capture::of(child.stderr.take().unwrap()),
            sampler: root.map(|root| Sampler::of(root, self.pause, self.notes_sockets)),
            _watchdog: root.map(|root| watch(root, mark.clone(), LOOK)),
            begin: Instant::now(),
            child,
            mark,
            directory,
            stats,
            mappings: self.mappings,
            temporary,
        }
    }

    /// To its end, with no standard input.
    pub(crate) fn finish(self) -> Finished {
        self.start().finish()
    }
}

/// A run under way. Dropped early, it takes its processes down.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Capture,
    stderr: Capture,
    sampler: Option<Sampler>,
    /// Dropped with the run, which ends the watch.
    _watchdog: Option<Sender<()>>,
    begin: Instant,
    pub(crate) mark: String,
    directory: PathBuf,
    stats: PathBuf,
    mappings: u64,
    temporary: PathBuf,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Finished {
    status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) stats: Option<Value>,
    pub(crate) seen: Seen,
    pub(crate) mark: String,
    /// Files that are left where temporary files go.
    pub(crate) temporary_files: Vec<String>,
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The supervisor, the nodes and the programs.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let mut all = marked(&self.mark);
        let root = Process::find(self.child.id() as i32);
        all.extend(root.into_iter().flat_map(descendants));
        all.sort();
        all.dedup();
        all
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it has said until now.
    pub(crate) fn said(&self) -> String {
        let both = [self.stdout.bytes(), self.stderr.bytes()].concat();
        String::from_utf8_lossy(&both).into_owned()
    }

    pub(crate) fn wait_for_output(&self, text: &str) {
        if !self.stdout.wait_for(text, PATIENCE) {
            let errors = String::from_utf8_lossy(&self.stderr.bytes()).into_owned();
            panic!("'{text}' never came; standard error: {errors}");
        }
    }

    pub(crate) fn wait_for_message(&self, text: &str) {
        if !self.stderr.wait_for(text, PATIENCE) {
            let errors = String::from_utf8_lossy(&self.stderr.bytes()).into_owned();
            panic!("'{text}' was never said, but: {errors}");
        }
    }

    /// Until the program has said "ready" and has no more than this of the machine's memory, so that the
    /// rest is far. What it has just written may be ahead of its agent.
    pub(crate) fn wait_for_far_pages(&self, cache_mib: u64) {
        self.wait_for_output("ready");
        let at_most = cache_mib * MIB;
        poll_until("the programs are within their limit", PATIENCE, || {
            let programs = self.processes().into_iter().filter(Process::is_program);
            let local = programs.filter_map(|one| Some(one.resident()?.anonymous));
            local.sum::<u64>() <= at_most
        });
    }

    /// Standard output as far as it is there.
    pub(crate) fn output_so_far(&self) -> String {
        String::from_utf8_lossy(&self.stdout.bytes()).into_owned()
    }

    /// The number that follows `text` in what the program has written.
    pub(crate) fn number_after(&self, text: &str) -> u64 {
        let output = String::from_utf8_lossy(&self.stdout.bytes()).into_owned();
        let rest = output.split_once(text).map(|(_, rest)| rest);
        let digits = rest.and_then(|rest| rest.split_whitespace().next());
        digits
            .and_then(|digits| digits.parse().ok())
            .unwrap_or_else(|| panic!("no number after '{text}' in {output}"))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Closes standard input and waits for the end.
    pub(crate) fn finish(mut self) -> Finished {
        drop(self.stdin.take());
        let in_time = self.wait(DEADLINE.saturating_sub(self.begin.elapsed()));
        let errors = || String::from_utf8_lossy(&self.stderr.bytes()).into_owned();
        assert!(
            in_time,
            "not at its end after {DEADLINE:?}; standard error: {}",
            errors()
        );
        let status = self.child.wait().unwrap();
        for stream in [&self.stdout, &self.stderr] {
            let ended = stream.wait_for_end(PATIENCE);
            assert!(
                ended,
                "after {status} a process that is left holds the output: {:#?}; standard error: {}",
                self.left(),
                errors()
            );
        }
        let seen = self.sampler.take().map(Sampler::finish).unwrap_or_default();
        let stats = std::fs::read(&self.stats).ok();
        let stats = stats.map(|bytes| serde_json::from_slice(&bytes).expect("--stats writes JSON"));
        if let Some(stats) = &stats {
            expect_small_agents(stats, self.mappings);
        }
        let files = std::fs::read_dir(&self.temporary).unwrap().flatten();
        messages::expect_known(&errors());
        Finished {
            status,
            stdout: self.stdout.bytes(),
            stderr: errors(),
            stats,
            seen,
            mark: self.mark.clone(),
            temporary_files: files
                .map(|file| file.path().display().to_string())
                .collect(),
        }
    }

    /// Who is there still, and what it does.
    fn left(&self) -> Vec<String> {
        let left = marked(&self.mark);
        left.iter().map(Process::describe).collect()
    }

    fn wait(&self, limit: Duration) -> bool {
        // A child that has ended is there until it is waited for, unless that has been done.
        let Ok(process) = pidfd_open(self.pid(), PidfdFlags::empty()) else {
            return true;
        };
        let limit = Timespec::try_from(limit).unwrap();
        let mut ends = [PollFd::new(&process, PollFlags::IN)];
        poll(&mut ends, Some(&limit)).unwrap() > 0
    }
}

/// Whatever its program does, an agent takes no more for itself than this: for each page that it knows,
/// for each page of each forked child, for each page that is kept for children, for each of its program's
/// mappings, for the cache, and besides.
#[track_caller]
fn expect_small_agents(stats: &Value, mappings: u64) {
    const OF_A_MAPPING: u64 = 64;
    const OF_A_PAGE: u64 = 64;
    const OF_A_CHILDS_PAGE: u64 = 16;
    const OF_A_KEPT_PAGE: u64 = PAGE_SIZE as u64 + 512;
    const OF_THE_CACHE: u64 = 512;
    const BESIDES: u64 = 2 * MIB;
    let number = |value: &Value, name| value[name].as_u64().expect("every agent has all counters");
    let cache = number(stats, "cache_bytes_limit");
    for agent in stats["processes"].as_array().expect("a list") {
        let number = |name| number(agent, name);
        let pages = number("far_pages_peak") + number("cache_bytes_peak") / PAGE_SIZE as u64;
        let of_a_page = OF_A_PAGE + OF_A_CHILDS_PAGE * number("children_served");
        let kept = number("kept_pages_peak") * OF_A_KEPT_PAGE;
        let of_pages = pages * of_a_page + kept;
        let bound = of_pages + mappings * OF_A_MAPPING + cache / OF_THE_CACHE + BESIDES;
        let peak = number("agent_bytes_peak");
        assert!(peak <= bound, "{peak} bytes, of at most {bound}: {agent}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in self.processes() {
            process.signal(Signal::KILL);
        }
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Fills, checks, drops, moves and forks memory: the program of such a run is one of the `pattern` ones, which has its
/// arguments here.
#[track_caller]
pub(crate) fn expect_pattern(run: Run, operations: &str, seed: &str) -> Finished {
    let phases = sized(
        "touch,calls,discard,remap,unmap,protect,heap,fork",
        "touch,calls,fork",
    );
    let run = run
        .arguments(["--bytes", sized("256MiB", "20MiB")])
        .arguments(["--operations", sized("30000", operations)])
        .arguments(["--seed", seed, "--phase", phases])
        .cache_mib(sized(64, 12))
        .memory_mib(sized(1024, 512))
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
    run
}

impl Finished {
    /// The exit status, or None after a signal.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub(crate) fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    pub(crate) fn output(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.code(),
            Some(code),
            "signal {:?}, output: {}\nerrors: {}\nstatistics: {:?}",
            self.signal(),
            self.output(),
            self.stderr,
            self.stats
        );
        self
    }

    /// The message whose row in docs/troubleshooting.md begins so.
    #[track_caller]
    pub(crate) fn expect_told(&self, row: &str) {
        messages::expect_told(&self.stderr, row);
    }

    /// A number of the --stats file; a path such as `fault_ns/p99` leads into objects.
    #[track_caller]
    pub(crate) fn stat(&self, path: &str) -> u64 {
        let stats = self.stats.as_ref().expect("--stats wrote a file");
        let value = stats.pointer(&format!("/{path}"));
        value
            .and_then(Value::as_u64)
            .unwrap_or_else(|| panic!("no number '{path}' in {stats}"))
    }

    /// Pages were evicted and fetched, so the run shows something.
    #[track_caller]
    pub(crate) fn expect_far_pages(self) -> Self {
        assert!(
            self.stat("pages_written") > 0 && self.stat("pages_fetched") > 0,
            "nothing went far: {:?}\noutput: {}\nerrors: {}",
            self.stats,
            self.output(),
            self.stderr
        );
        assert_eq!(self.stat("pages_lost"), 0);
        self
    }
}
