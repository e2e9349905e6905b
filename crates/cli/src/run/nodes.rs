//! The memory nodes of one run: given by the user, or started here and taken down again.

use super::directory::RunDirectory;
use crate::args::RunArguments;
use crate::failure::Failure;
use crate::machine;
use crate::node::{self, READY};
use crate::output::tell;
use crate::own_process::{OwnProcess, wait_readable};
use legato_base::Bytes;
use legato_base::secret::{Keyring, RunKey};
use legato_base::timeouts::{NODE_ANSWER, NODE_START, NODE_STOP};
use legato_base::wire::control::NodeSet;
use legato_verbs::Address;
use rustix::process::{Pid, Signal};
use std::io::Read as _;
use std::process::{ChildStdin, ChildStdout, Stdio};

/// Memory nodes of the embedded default: two, so that a run looks like one on a cluster.
const EMBEDDED_NODES: u64 = 2;

/// The memory nodes that a program uses, in the order in which its agents know them.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) list: Vec<Node>,
    /// What agents prove themselves with to nodes on other machines.
    pub(crate) key: Option<RunKey>,
}

/// One memory node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) address: Address,
    pub(crate) process: Option<NodeProcess>,
    pub(crate) lost: bool,
    /// Pages whose only copy was there when it was lost.
    pub(crate) pages_lost: u64,
}

/// A memory node that this process started.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    process: OwnProcess,
    /// The node ends when this end of its standard input is closed, however that happens.
    lifeline: ChildStdin,
}

impl Nodes {
    /// Checks the given nodes or starts the embedded ones.
    pub(crate) fn provide(
        arguments: &RunArguments,
        directory: &RunDirectory,
    ) -> Result<Self, Failure> {
        if arguments.nodes.is_empty() {
            return start_embedded(arguments.far, directory);
        }
        let key = arguments.secret.new_run(&arguments.nodes)?;
        let keys = key.clone().map(Keyring::One);
        let mut list = Vec::new();
        let mut absent = Vec::new();
        for asked in &arguments.nodes {
            let found = node::status::find(asked, keys.as_ref(), NODE_ANSWER);
            let address = match found {
                Ok((address, _)) => address,
                Err(error) => {
                    let failure = error.failure(asked, &arguments.secret);
                    if !error.is_absence() {
                        return Err(failure);
                    }
                    absent.push(failure);
                    list.push(Node {
                        lost: true,
                        ..Node::new(asked.clone(), None)
                    });
                    continue;
                }
            };
            if matches!((asked, &address), (Address::Any(_), Address::RoceTcp(_)))
                && !arguments.quiet
            {
                tell(format_args!(
                    "memory node {asked}: no answer over UDP, so over TCP; that is slower; let UDP through to \
                     its port"
                ));
            }
            list.push(Node::new(address, None));
        }
        let all_are = absent.len() == list.len();
        for failure in absent {
            if all_are {
                return Err(failure);
            }
            tell(format_args!("{}; the run begins without it", failure.text));
        }
        Ok(Self { list, key })
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.list
            .iter()
            .map(|node| node.address.to_string())
            .collect()
    }

    pub(crate) fn lost(&self) -> NodeSet {
        let nodes = self.list.iter().enumerate();
        let lost = nodes.filter(|(_, node)| node.lost);
        lost.map(|(index, _)| index).collect()
    }

    /// Of the nodes that were started here.
    pub(crate) fn pids(&self) -> impl Iterator<Item = Pid> {
        let processes = self.list.iter().filter_map(|node| node.process.as_ref());
        processes.map(NodeProcess::pid)
    }

    /// A child has been reaped; it may have been a node.
    pub(crate) fn handle_child_ended(&mut self, pid: Pid) {
        for node in &mut self.list {
            let own = node.process.as_mut();
            node.lost |= own.is_some_and(|own| own.process.handle_child_ended(pid));
        }
    }

    /// Ends the nodes that were started here and waits for them.
    pub(crate) fn stop(self) {
        let processes: Vec<_> = self
            .list
            .into_iter()
            .filter_map(|node| node.process)
            .collect();
        for own in &processes {
            own.process.signal(Signal::TERM);
        }
        for process in processes {
            process.reap();
        }
    }
}

impl Node {
    fn new(address: Address, process: Option<NodeProcess>) -> Self {
        Self {
            address,
            process,
            lost: false,
            pages_lost: 0,
        }
    }
}

impl NodeProcess {
    pub(crate) const fn pid(&self) -> Pid {
        self.process.pid()
    }

    fn reap(mut self) {
        drop(self.lifeline);
        self.process.end(NODE_STOP);
    }
}

fn start_embedded(memory: Option<Bytes>, directory: &RunDirectory) -> Result<Nodes, Failure> {
    let memory = machine::memory_to_serve("--far", memory)?;
    let mut nodes = Nodes {
        list: Vec::new(),
        key: None,
    };
    for number in 0..EMBEDDED_NODES {
        let address = Address::Shm(directory.node(number).display().to_string());
        match start_one(&address, Bytes(memory.0 / EMBEDDED_NODES)) {
            Ok(process) => nodes.list.push(Node::new(address, Some(process))),
            Err(failure) => {
                nodes.stop();
                return Err(failure);
            }
        }
    }
    Ok(nodes)
}

fn start_one(address: &Address, memory: Bytes) -> Result<NodeProcess, Failure> {
    let mut command = OwnProcess::command("node");
    command
        .arg(format!("--memory={}", memory.0))
        .arg(format!("--listen={address}"))
        .arg("--embedded")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let (process, mut child) = OwnProcess::start(&mut command)
        .map_err(|error| Failure::system("cannot start a memory node", error))?;
    let (Some(lifeline), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        unreachable!("both were asked for as pipes");
    };
    let process = NodeProcess { process, lifeline };
    if is_ready(output) {
        return Ok(process);
    }
    process.reap();
    // It has said why on standard error, which it shares with this process.
    Err(Failure::refused(
        "a memory node did not start; it has said why before; see there",
    ))
}

/// Waits for the line that a node prints once it listens.
fn is_ready(mut output: ChildStdout) -> bool {
    let mut line = [0; READY.len()];
    let mut filled = 0;
    while filled < line.len() && wait_readable(&output, NODE_START) {
        match output.read(&mut line[filled..]) {
            Ok(0) | Err(_) => return false,
            Ok(count) => filled += count,
        }
    }
    line == READY
}
