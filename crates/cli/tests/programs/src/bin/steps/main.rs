//! Counts the instructions and system calls by which an agent answers faults.
//!
//! `steps --process PID [--calls] [--faults N] [--rounds N]`: says "stopped" once the agent is, and lets it
//! execute one instruction after the other then; with --calls, one system call after the other, which takes a
//! thousandth of the time. A round is of that many faults (100). What each takes is said, and after the last (1)
//! the agent goes on by itself. Counted is what it executes, and not what the kernel does for it; nor how often
//! it looks in vain, which depends on how fast the program is beside it.

mod clock;
mod tracee;

use clock::Clock;
use legato_test_programs::Options;
use std::fmt;
use std::io;
use std::process::ExitCode;
use tracee::{Call, Tracee};

/// The requests of userfaultfd (`linux/userfaultfd.h`) that bring a page; and by which each turn of the agent
/// begins, because it tells whether the address space is changing.
const UFFDIO_COPY: u64 = 0xC028_AA03;
const UFFDIO_WRITEPROTECT: u64 = 0xC018_AA06;
/// Bytes of `struct uffd_msg`, and of nothing else that the agent reads.
const MESSAGE: i64 = 32;

/// What the agent has executed, and done with it.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    instructions: u64,
    calls: u64,
    faults: u64,
}

impl Count {
    fn since(self, before: Self) -> Self {
        Self {
            instructions: self.instructions - before.instructions,
            calls: self.calls - before.calls,
            faults: self.faults - before.faults,
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            instructions,
            calls,
            faults,
        } = self;
        write!(
            f,
            "{faults} faults, {instructions} instructions, {calls} calls"
        )
    }
}

fn main() -> ExitCode {
    let options = Options::parse(&["--process", "--faults", "--rounds"], &["--calls"]);
    let pid = options.number("--process", 0);
    let faults = options.number("--faults", 100);
    let rounds = options.number("--rounds", 1);
    let counted = Agent::attach(pid as libc::pid_t).and_then(|mut agent| {
        println!("stopped");
        // What is under way is somebody else's round.
        agent.round(1)?;
        agent.counts_instructions = !options.flag("--calls");
        for _ in 0..rounds {
            let [whole, shortest] = agent.round(faults)?;
            println!("{whole}");
            println!("{shortest}, from looking for it to its page");
        }
        agent.leave()
    });
    match counted {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steps: process {pid}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// An agent that is single-stepped.
struct Agent {
    tracee: Tracee,
    clock: Clock,
    done: Count,
    /// What was done before this turn, and whether there was anything to do in it.
    turn: Count,
    works: bool,
    /// What was done before the turn in which the fault was reported that is to be answered next.
    reported: Option<Count>,
    counts_instructions: bool,
}

impl Agent {
    fn attach(pid: libc::pid_t) -> io::Result<Self> {
        let tracee = Tracee::attach(pid)?;
        Ok(Self {
            clock: Clock::take_over(&tracee)?,
            tracee,
            done: Count::default(),
            turn: Count::default(),
            works: true,
            reported: None,
            counts_instructions: false,
        })
    }

    fn leave(self) -> io::Result<()> {
        self.clock.give_back(&self.tracee)
    }

    /// Until so many faults are answered. Returns what it took, and what it took from looking for a fault to its
    /// page where that was least: nothing else was done meanwhile.
    fn round(&mut self, faults: u64) -> io::Result<[Count; 2]> {
        let begin = self.done;
        let mut shortest: Option<Count> = None;
        while self.done.since(begin).faults < faults {
            let Some(call) = self.step()? else { continue };
            if reports_a_fault(&call) {
                self.reported = Some(self.turn);
            } else if brings_a_page(&call) {
                self.done.faults += 1;
                let way = self.reported.take().map(|from| self.done.since(from));
                let ways = shortest.into_iter().chain(way);
                shortest = ways.min_by_key(|way| (way.instructions, way.calls));
            }
        }
        Ok([self.done.since(begin), shortest.unwrap_or_default()])
    }

    /// One instruction. Returns the system call that it was, unless it asked for the time: that is one here
    /// only.
    fn step(&mut self) -> io::Result<Option<Call>> {
        let call = if self.counts_instructions {
            self.done.instructions += 1;
            self.tracee.step()?
        } else {
            Some(self.tracee.step_to_call()?)
        };
        self.clock.tick(&self.tracee, call.as_ref())?;
        let call = call.filter(|call| call.number != libc::SYS_clock_gettime);
        if call.is_some_and(|call| is_request(&call, UFFDIO_WRITEPROTECT)) {
            self.begin_turn();
        }
        self.done.calls += u64::from(call.is_some());
        self.works |= call.is_some_and(|call| !looks(&call));
        Ok(call)
    }

    fn begin_turn(&mut self) {
        if !std::mem::take(&mut self.works) {
            self.done = self.turn;
        }
        self.turn = self.done;
    }
}

/// Is there anything to do?
fn looks(call: &Call) -> bool {
    match call.number {
        libc::SYS_read => call.result < 0,
        libc::SYS_ioctl => is_request(call, UFFDIO_WRITEPROTECT),
        number => [libc::SYS_epoll_pwait, libc::SYS_ppoll].contains(&number),
    }
}

fn is_request(call: &Call, request: u64) -> bool {
    call.number == libc::SYS_ioctl && call.arguments[1] == request
}

fn reports_a_fault(call: &Call) -> bool {
    call.number == libc::SYS_read && call.result == MESSAGE
}

fn brings_a_page(call: &Call) -> bool {
    is_request(call, UFFDIO_COPY) && call.result == 0
}
