//! The supervisor's part in dividing the local memory, and in serving the whole tree.

use super::Supervisor;
use crate::output::tell;
use crate::run::agents::Agent;
use crate::run::control::Connection;
use crate::run::processes;
use crate::run::tree::{Server, marks};
use legato_base::wire::control::SupervisorMessage;
use rustix::process::Pid;
use std::time::Instant;

/// A hand in the child `pid` (as that sees itself) of the process `program`.
#[derive(Debug)]
pub(super) struct Hand {
    pub(super) pid: u32,
    pub(super) program: u32,
    pub(super) address: u64,
    pub(super) connection: Connection,
}

impl Supervisor {
    /// Tells the agents of shares that have changed.
    pub(super) fn settle_shares(&mut self, now: Instant) {
        for (account, bytes) in self.ledger.settle(now) {
            let order = SupervisorMessage::Share { bytes };
            let mut agents = self.agents.iter();
            let agent = agents.find(|agent| agent.account() == Some(account));
            if !agent.is_some_and(|agent| agent.send(&order)) {
                self.ledger.handle_undelivered(account);
            }
        }
        if let Some((processes, floors)) = self.ledger.shortage() {
            tell(format_args!(
                "{processes} processes need at least {floors} of local memory, more than --cache {}; it is \
                 exceeded by what is missing; raise it",
                self.cache
            ));
        }
    }

    /// A hand goes to the agent that it works for, which talks to it alone from now on (P-43). Without
    /// that agent it ends with its connection.
    pub(super) fn handle_hand(&mut self, hand: Hand) {
        let Hand {
            pid,
            program,
            address,
            connection,
        } = hand;
        let task = connection.peer;
        let mut agents = self.agents.iter();
        let Some(agent) = agents.find(|agent| u32::try_from(agent.pid()) == Ok(program)) else {
            return;
        };
        let passed = agent.hand_over(&SupervisorMessage::Hand { pid, address }, connection);
        if let (true, Some(tree)) = (passed, &mut self.tree) {
            tree.note_hand(processes::of_agent(task, pid), task);
        }
    }

    /// Looks for processes that nobody serves.
    pub(super) fn look_at_tree(&mut self, now: Instant) {
        let Some(tree) = &mut self.tree else {
            return;
        };
        let agents = self.agents.iter();
        let programs = agents.clone().filter_map(Agent::program_pid);
        let tasks = agents.clone().filter_map(Agent::peer);
        let attended: Vec<Pid> = programs.chain(tasks).chain(self.helpers.pids()).collect();
        let servers: Vec<Server> = agents.filter_map(Agent::server).collect();
        for process in tree.turn(&attended, &servers, now) {
            self.handle_local(process);
        }
        if self.ends {
            self.end_all(true);
        }
    }

    /// The agent serves: how it came, and by which marks forked children are known.
    pub(super) fn note_start(&self, agent: &mut Agent) {
        if let (Some(tree), Some(pid)) = (&self.tree, agent.program_pid()) {
            agent.injected = tree.is_injected(pid);
            agent.marks = marks(pid);
        }
    }
}
