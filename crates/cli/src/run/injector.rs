//! Brings agents into processes that run already, or that no dynamic loader starts.
//!
//! Tracing belongs to one thread (ptrace(2)), and the agent that starts needs answers from the
//! supervisor's loop meanwhile; so each injection has a thread of its own. Its end lets go of
//! whatever it has traced.

use super::preload::OBJECT;
use crate::failure::Failure;
use legato_base::SystemError;
use legato_pager::uffd::injection::{
    Entry, InjectionError, Launch, Object, ObjectError, Parameters, Target, inject,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::Pid;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Why no injection can be made at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InjectorError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("{}", SystemError(.0.raw_os_error()))]
    System(#[from] rustix::io::Errno),
}

impl InjectorError {
    pub(crate) fn failure(self) -> Failure {
        match self {
            Self::Object(error) => Failure::refused(format_args!(
                "the agent inside this legato is damaged: {error}; install legato again"
            )),
            Self::System(error) => Failure::system("cannot prepare the agent", error),
        }
    }
}

/// How an injection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Injected {
    pub(crate) pid: Pid,
    pub(crate) result: Result<(), InjectionError>,
}

/// All injections of one run.
#[derive(Debug)]
pub(crate) struct Injector {
    shared: Arc<Shared>,
    sender: Sender<Injected>,
    receiver: Receiver<Injected>,
    under_way: Vec<(Pid, JoinHandle<()>)>,
}

#[derive(Debug)]
struct Shared {
    object: Object<'static>,
    control: Vec<u8>,
    masked_features: Vec<u8>,
    /// Readable when there is a result.
    ready: OwnedFd,
}

impl Injector {
    pub(crate) fn start(control: &Path, masked_features: &[u8]) -> Result<Self, InjectorError> {
        let (sender, receiver) = channel();
        let shared = Shared {
            object: Object::parse(OBJECT)?,
            control: control.as_os_str().as_encoded_bytes().to_vec(),
            masked_features: masked_features.to_vec(),
            ready: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        Ok(Self {
            shared: Arc::new(shared),
            sender,
            receiver,
            under_way: Vec::new(),
        })
    }

    /// Calls an entry of the agent's object in a process; the result comes later.
    pub(crate) fn inject(&mut self, target: Target, entry: Entry, argument: u64) {
        self.spawn(target.pid(), move |shared| {
            let parameters = shared.parameters(entry, argument)?;
            inject(target, &shared.object, &parameters)
        });
    }

    /// Follows a child, which is about to execute the program, and brings the agent in before the
    /// program's first instruction. Returns when it may execute it; the result comes later.
    pub(crate) fn follow(&mut self, pid: Pid) -> Result<(), InjectionError> {
        let (seized, wait) = channel();
        self.spawn(pid, move |shared| {
            let parameters = shared.parameters(Entry::Agent, 0)?;
            let launch = match Launch::seize(pid) {
                Ok(launch) => launch,
                Err(error) => {
                    // The other side waits for it.
                    let _ = seized.send(Err(error));
                    return Err(error);
                }
            };
            let _ = seized.send(Ok(()));
            launch.inject(&shared.object, &parameters)
        });
        wait.recv().unwrap_or(Err(InjectionError::Gone))
    }

    fn spawn(
        &mut self,
        pid: Pid,
        work: impl FnOnce(&Shared) -> Result<(), InjectionError> + Send + 'static,
    ) {
        let shared = Arc::clone(&self.shared);
        let sender = self.sender.clone();
        let thread = std::thread::spawn(move || {
            let result = work(&shared);
            // Both fail only when nobody wants to know any more.
            let _ = sender.send(Injected { pid, result });
            let _ = rustix::io::write(&shared.ready, &1u64.to_le_bytes());
        });
        self.under_way.push((pid, thread));
    }

    /// Is the process being traced? Its stops look like ends to `wait(2)` in its parent then, if
    /// that is this process.
    pub(crate) fn traces(&self, pid: Pid) -> bool {
        self.under_way.iter().any(|&(traced, _)| traced == pid)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// What has ended since the last call. The processes are not traced any more.
    pub(crate) fn results(&mut self) -> Vec<Injected> {
        // Empty is as good as read.
        let _ = rustix::io::read(&self.shared.ready, &mut [0u8; 8]);
        let results: Vec<Injected> = self.receiver.try_iter().collect();
        for injected in &results {
            let position = self
                .under_way
                .iter()
                .position(|(pid, _)| *pid == injected.pid);
            if let Some(position) = position {
                let (_, thread) = self.under_way.swap_remove(position);
                // It has sent its result as its last act; a panic would have ended the process.
                let _ = thread.join();
            }
        }
        results
    }
}

impl AsFd for Injector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.ready.as_fd()
    }
}

impl Shared {
    fn parameters(&self, entry: Entry, argument: u64) -> Result<Parameters, InjectionError> {
        Parameters::new(entry, &self.control, &self.masked_features, argument).ok_or(
            InjectionError::NotStarted(rustix::io::Errno::NAMETOOLONG.raw_os_error()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn result(injector: &mut Injector) -> Injected {
        loop {
            poll(&mut [PollFd::new(injector, PollFlags::IN)], None).unwrap();
            if let Some(injected) = injector.results().pop() {
                return injected;
            }
        }
    }

    /// Waits until `cat` has been loaded and reads its standard input: `spawn` already returns
    /// while it is still executing.
    fn until_it_reads(pid: Pid) {
        while !std::fs::read_to_string(format!("/proc/{pid}/syscall"))
            .unwrap()
            .starts_with("0 0x0 ")
        {
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_agent_without_a_supervisor_leaves_the_process_as_it_was() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let descriptors = || {
            std::fs::read_dir(format!("/proc/{pid}/fd"))
                .unwrap()
                .count()
        };
        until_it_reads(pid);
        let (maps_before, descriptors_before) = (maps(), descriptors());
        let mut injector = Injector::start(Path::new("/nobody"), b"").unwrap();
        // Nobody waits for a hand: it finds out by itself that it is of no use.
        for (entry, expected) in [
            (Entry::Agent, Err(InjectionError::AgentRefused)),
            (Entry::Hand, Ok(())),
        ] {
            injector.inject(Target::of(pid).unwrap(), entry, 0);
            assert!(injector.traces(pid));
            let injected = result(&mut injector);
            assert_eq!(injected.pid, pid);
            assert_eq!(injected.result, expected);
            assert!(injector.is_idle());
            assert_eq!(descriptors(), descriptors_before);
            if entry == Entry::Agent {
                assert_eq!(maps(), maps_before);
            }
        }
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn the_end_of_a_child_stays_to_be_collected() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        until_it_reads(pid);
        let mut injector = Injector::start(Path::new("/nobody"), b"").unwrap();
        let seen = Target::of(pid).unwrap();
        injector.follow(pid).unwrap();
        // It ends instead of executing a program.
        drop(child.stdin.take());
        assert_eq!(result(&mut injector).result, Err(InjectionError::Gone));
        assert_eq!(child.wait().unwrap().code(), Some(0));
        injector.inject(seen, Entry::Agent, 0);
        assert_eq!(result(&mut injector).result, Err(InjectionError::Gone));
        assert_eq!(Target::of(pid).unwrap_err(), InjectionError::Gone);
    }

    /// Lost: a hand for a forked child was put into the program that the child executed meanwhile.
    #[test]
    fn a_process_that_has_executed_a_program_since_it_was_looked_at_is_left_alone() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec cat"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        until_it_reads(pid);
        let mut injector = Injector::start(Path::new("/nobody"), b"").unwrap();
        let seen = [Target::of(pid).unwrap(), Target::of(pid).unwrap()];
        let command = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"now\n").unwrap();
        while command() != "cat\n" {
            std::thread::yield_now();
        }
        until_it_reads(pid);
        let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let maps_before = maps();
        for (target, entry) in seen.into_iter().zip([Entry::Agent, Entry::Hand]) {
            injector.inject(target, entry, 0);
            let injected = result(&mut injector);
            assert_eq!(injected.result, Err(InjectionError::Gone), "{entry:?}");
            assert_eq!(maps(), maps_before);
        }
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
