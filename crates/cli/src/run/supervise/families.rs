//! Processes whose agent cannot start, or cannot go on.

use super::Supervisor;
use crate::output::tell;
use crate::run::agents::Agent;
use crate::run::local::LocalProcess;
use crate::run::processes;
use crate::run::tree::{self, Server, Tree};
use legato_base::wire::control::SupervisorMessage;
use legato_pager::uffd::same_memory;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;

/// Looks for children that were forked while others were being killed.
const LOOKS_MAX: u32 = 16;

impl Supervisor {
    /// An agent could not start. The program of the run ends, if it has not begun; a child of it,
    /// and what runs already, goes on without.
    pub(super) fn dismiss(&mut self, agent: &Agent, text: &str) {
        let (main, pid) = (self.main.as_raw_pid(), agent.pid());
        let entered = |tree: &Tree| tree.asks_for(self.main);
        let runs = pid != main || self.began || self.tree.as_ref().is_some_and(entered);
        if runs {
            if let (Some(tree), Some(program)) = (&mut self.tree, agent.program_pid()) {
                tree.note_refusal(program);
            }
            self.handle_local(LocalProcess {
                pid,
                command: agent.command.clone(),
                why: text.to_owned(),
            });
        } else {
            self.refuse_program(&text);
        }
        // It waits. If it is gone it need not be told.
        let runs = runs && !self.ends;
        agent.send(&SupervisorMessage::Dismissed { runs });
    }

    /// A process has no far memory. With `--strict` that ends the run.
    pub(super) fn handle_local(&mut self, process: LocalProcess) {
        if self.ends {
            return;
        }
        let line = self.local.add(process);
        line.iter().for_each(tell);
        if self.strict {
            tell(
                "the run ends, because one of its processes has no far memory; mend that, or do without --strict",
            );
            self.refused = true;
            self.ends = true;
        }
    }

    /// An agent that cannot go on has killed its program, but knows no other process by its id.
    /// What it serves besides waits for pages that never come.
    pub(super) fn end_doomed_families(&self) {
        for agent in self.agents.iter().filter(|agent| agent.is_doomed()) {
            self.end_family(agent);
        }
    }

    fn end_family(&self, doomed: &Agent) {
        let agents = self.agents.iter();
        let servers: Vec<Server> = agents.clone().filter_map(Agent::server).collect();
        let programs = agents.clone().filter_map(Agent::program_pid);
        let tasks = agents.filter_map(Agent::peer);
        let mut done: BTreeSet<i32> = programs
            .chain(tasks)
            .chain(self.helpers.pids())
            .map(Pid::as_raw_pid)
            .collect();
        for _ in 0..LOOKS_MAX {
            let all = processes::below();
            let served = all.iter().filter(|process| {
                !process.ended
                    && !done.contains(&process.pid.as_raw_pid())
                    && self.is_served_by(process.pid, doomed, &servers)
            });
            let served: Vec<Pid> = served.map(|process| process.pid).collect();
            if served.is_empty() {
                return;
            }
            for pid in served {
                done.insert(pid.as_raw_pid());
                // ESRCH: it has ended, which was the purpose.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Does the agent serve the memory of this process, which is not its program?
    fn is_served_by(&self, pid: Pid, agent: &Agent, servers: &[Server]) -> bool {
        let Some(program) = agent.program_pid() else {
            return false;
        };
        let has_hand = |program| {
            let tree = self.tree.as_ref();
            tree.is_some_and(|tree| tree.helper_of(pid) == Some(program))
        };
        // A vfork child uses its parent's memory, which is the agent's too.
        let shares = |task| same_memory(pid, task) == Ok(true);
        has_hand(program)
            || agent.peer().is_some_and(shares)
            || tree::mappings(pid, servers)
                .is_some_and(|mappings| mappings.served && mappings.server == Some(program))
    }
}
