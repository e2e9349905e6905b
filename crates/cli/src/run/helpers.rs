//! The processes and threads of one run that are not its programs'.

use super::agents::Agent;
use super::control::Connection;
use super::idle_poll;
use super::keeper::Keeper;
use super::nodes::Nodes;
use super::proxies::Proxies;
use super::reach::reaches;
use crate::args::IdlePollArgument;
use crate::output::tell;
use legato_base::wire::control::SupervisorMessage;
use legato_verbs::Address;
use rustix::process::Pid;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

/// What runs beside the supervisor.
#[derive(Debug)]
pub(crate) struct Helpers {
    pub(crate) nodes: Nodes,
    /// The NIC of agents that cannot open it themselves.
    pub(crate) proxies: Option<Proxies>,
    /// None if it has ended, and no other could be started.
    pub(crate) keeper: Option<Keeper>,
    /// The run's directory.
    pub(crate) directory: PathBuf,
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

    // P-103
    /// The near end of a proxy, for an agent that needs one. What another user's agent reaches it reaches by its
    /// keys: whoever connects to a node on this machine could read all of its memory.
    pub(crate) fn proxy_for(&mut self, connection: &Connection) -> Option<OwnedFd> {
        let is_near = |address: &Address| matches!(address, Address::Shm(_));
        let reaches_all = self.nodes.list.iter().all(|node| {
            let stranger = connection.is_foreign && is_near(&node.address);
            !stranger && reaches(connection.peer, &node.address)
        });
        if reaches_all && !self.proxies.as_ref().is_some_and(Proxies::are_for_all) {
            return None;
        }
        if self.proxies.is_none() {
            let new = Proxies::start(&self.nodes).inspect_err(|failure| tell(&failure.text));
            self.proxies = new.ok();
        }
        self.proxies.as_ref()?.connect()
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
            let new = Keeper::start(&self.directory).inspect_err(|failure| tell(&failure.text));
            self.keeper = new.ok();
        }
        if let Some(keeper) = &self.keeper {
            for agent in agents {
                agent.have_kept(keeper, has_ended);
            }
        }
    }
}
