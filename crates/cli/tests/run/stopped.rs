//! What a slow machine does to a run, in the extreme: some of its processes, or all, stand still for ten
//! seconds (SIGSTOP), in the middle of work. Nothing is lost, nobody is killed, nothing is said.

use crate::harness::{Node, Process, Run, Running, test_program};
use rustix::process::Signal;
use std::time::Duration;

const STANDSTILL: Duration = Duration::from_secs(10);
const MIB: u64 = 16;

/// How a run reaches its node.
#[derive(Clone, Copy, Debug)]
enum Carrier {
    SharedMemory,
    Datagrams,
    Stream,
    /// Datagrams, by the supervisor's NIC.
    SecondHand,
}

/// Who stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Everybody,
    Node,
    Supervisor,
    /// Programs and their agents.
    Programs,
}

/// What the program is doing then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Pages are fetched and leave.
    Reads,
    /// A program is executed, so that its agent connects.
    Starts,
}

#[derive(Debug)]
struct Case {
    carrier: Carrier,
    who: Who,
    work: Work,
    node: Node,
    run: Running,
}

impl Case {
    fn new(number: u16, carrier: Carrier, who: Who, work: Work) -> Self {
        let host = Node::unused_host();
        let place = format!("{host}:{}", 4791 + number);
        let node = match carrier {
            Carrier::SharedMemory => Node::start("128MiB"),
            Carrier::Datagrams | Carrier::SecondHand => {
                Node::start_at("128MiB", &format!("roce://{place}"))
            }
            Carrier::Stream => Node::start_at("128MiB", &format!("roce+tcp://{place}")),
        };
        let hold = test_program("hold");
        let run = match work {
            Work::Reads => Run::far(hold),
            Work::Starts => {
                let script = format!("echo ready; read line; exec {} \"$@\"", hold.display());
                Run::far("sh").arguments(["-c", &script, "sh"])
            }
        };
        let run = run
            .arguments(["--bytes", &format!("{MIB}MiB"), "--again"])
            .at(&[&node])
            .cache_mib(8);
        let run = match carrier {
            Carrier::SecondHand => run.environment("LEGATO_PROXY", "1"),
            _ => run,
        };
        Self {
            carrier,
            who,
            work,
            node,
            run: run.start(),
        }
    }

    fn stopping(&self) -> Vec<Process> {
        let root = self.run.pid().as_raw_pid();
        let (supervisor, programs): (Vec<_>, Vec<_>) = self
            .run
            .processes()
            .into_iter()
            .partition(|process| process.pid == root);
        let node = self.node.process();
        match self.who {
            Who::Everybody => supervisor
                .into_iter()
                .chain(programs)
                .chain([node])
                .collect(),
            Who::Node => vec![node],
            Who::Supervisor => supervisor,
            Who::Programs => programs,
        }
    }

    /// Puts the run to work and stops it.
    fn stop(&mut self) -> Vec<Process> {
        // Who is to be met standing still stands still before.
        let works_meanwhile = matches!(self.who, Who::Node | Who::Supervisor);
        if !works_meanwhile {
            self.run.write(b"go\n");
        }
        let stopped = self.stopping();
        assert!(!stopped.is_empty(), "{self:?}");
        for process in &stopped {
            process.signal(Signal::STOP);
        }
        if works_meanwhile {
            self.run.write(b"go\n");
        }
        stopped
    }

    fn finish(self) {
        let what = format!(
            "{:?}, {:?} stopped, {:?}",
            self.carrier, self.who, self.work
        );
        let run = self.run.finish();
        let right = format!("hold: {} right, 0 lost, 0 wrong\n", MIB * 256);
        assert!(run.output().ends_with(&right), "{what}: {run:?}");
        assert_eq!((run.code(), run.stderr.as_str()), (Some(0), ""), "{what}");
        assert!(run.stat("pages_fetched") > 0, "{what}: {:?}", run.stats);
    }
}

/// All at the same time, as they cost little but the time.
#[test]
fn ten_seconds_of_standstill_cost_nothing_but_ten_seconds() {
    let carriers = [
        Carrier::SharedMemory,
        Carrier::Datagrams,
        Carrier::Stream,
        Carrier::SecondHand,
    ];
    let whos = [Who::Everybody, Who::Node, Who::Supervisor, Who::Programs];
    let mut cases = Vec::new();
    for carrier in carriers {
        for who in whos {
            let number = cases.len() as u16;
            cases.push(Case::new(number, carrier, who, Work::Reads));
            if who == Who::Node {
                cases.push(Case::new(number + 1, carrier, who, Work::Starts));
            }
        }
    }
    for case in &cases {
        case.run.wait_for_output("ready");
    }
    let stopped: Vec<_> = cases.iter_mut().flat_map(Case::stop).collect();
    std::thread::sleep(STANDSTILL);
    for process in stopped {
        process.signal(Signal::CONT);
    }
    for case in cases {
        case.finish();
    }
}
