//! The processes and threads of one run that are not its programs'.

use super::agents::Agent;
use super::idle_poll;
use super::keeper::Keeper;
use super::nodes::Nodes;
use super::proxies::Proxies;
use crate::args::IdlePollArgument;
use crate::output::tell;
use legato_base::wire::control::SupervisorMessage;
use rustix::process::Pid;
use std::os::fd::AsFd as _;

/// What runs beside the supervisor.
#[derive(Debug)]
pub(crate) struct Helpers {
    pub(crate) nodes: Nodes,
    /// The NIC of all agents, where they cannot open it themselves.
    pub(crate) proxies: Option<Proxies>,
    /// None if it has ended, and no other could be started.
    pub(crate) keeper: Option<Keeper>,
    pub(crate) idle_poll: IdlePollArgument,
}

impl Helpers {
    pub(crate) fn pids(&self) -> impl Iterator<Item = Pid> {
        let keeper = self.keeper.as_ref().map(Keeper::pid);
        self.nodes.pids().chain(keeper)
    }

    pub(crate) fn has(&self, pid: Pid) -> bool {
        self.pids().any(|helper| helper == pid)
    }

    /// A child has been reaped; it may have been one of these.
    pub(crate) fn handle_child_ended(&mut self, pid: Pid) {
        self.nodes.handle_child_ended(pid);
        if let Some(keeper) = &mut self.keeper {
            keeper.handle_child_ended(pid);
        }
    }

    /// The agent serves from now on: what else it is given.
    pub(crate) fn equip(&self, agent: &Agent) {
        if let Some(request) = idle_poll::open_request(self.idle_poll) {
            // An agent that cannot be told now does without.
            agent.send_attached(&SupervisorMessage::IdlePoll, request.as_fd());
        }
    }

    /// The keeper holds whatever userfaultfds are held here; one that has died is replaced.
    pub(crate) fn have_kept(&mut self, agents: &mut [Agent]) {
        let has_ended = self.keeper.as_ref().is_some_and(Keeper::has_ended);
        if has_ended {
            let new = Keeper::start().inspect_err(|failure| tell(&failure.text));
            self.keeper = new.ok();
        }
        if let Some(keeper) = &self.keeper {
            for agent in agents {
                agent.have_kept(keeper, has_ended);
            }
        }
    }
}
