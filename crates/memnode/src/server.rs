//! A memory node on a fabric: one loop body for the daemon, the simulator and the tests.

use crate::{Caller, Interface, MemoryNode, NodeConfig, NodeCounters};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use core::cell::RefCell;
use legato_base::secret::{Keyring, SecureRandom};
use legato_base::wire::node::{NodeRequest, NodeStatus};
use legato_base::{Bytes, ClientId, Duration, Time};
use legato_fabric::{
    ConnectionId, Fabric, FabricConfig, FabricCounters, FabricEvent, NoBuffer, RequestId, Turn,
};
use legato_verbs::{Address, Listener, Provider, VerbsError};

/// A memory node on one of its interfaces, with the fabric there.
#[derive(Debug)]
pub struct NodeServer {
    fabric: Fabric<NoBuffer>,
    node: Rc<RefCell<MemoryNode>>,
    interface: Interface,
    /// Requests whose reply could not be sent and that still wait, with what they ask.
    unanswered: BTreeMap<RequestId, &'static str>,
    overdue: VecDeque<OverdueHandler>,
}

/// A request that has waited for its reply longer than it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverdueHandler {
    pub connection: ConnectionId,
    /// Who asks, if it has said so.
    pub client: Option<ClientId>,
    /// What it asks.
    pub opcode: &'static str,
    pub waited: Duration,
}

impl NodeServer {
    /// No client can use what another one was given.
    ///
    /// # Errors
    /// As [`Fabric::new`].
    pub fn new(
        provider: &mut dyn Provider,
        fabric: FabricConfig,
        node: NodeConfig,
    ) -> Result<Self, VerbsError> {
        let node = Rc::new(RefCell::new(MemoryNode::new(node)));
        Self::of(node, 0, provider, fabric)
    }

    /// The same node on one more interface. The number must be one that it has not yet.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn on_another(
        &self,
        interface: Interface,
        provider: &mut dyn Provider,
        fabric: FabricConfig,
    ) -> Result<Self, VerbsError> {
        Self::of(Rc::clone(&self.node), interface, provider, fabric)
    }

    fn of(
        node: Rc<RefCell<MemoryNode>>,
        interface: Interface,
        provider: &mut dyn Provider,
        fabric: FabricConfig,
    ) -> Result<Self, VerbsError> {
        let fabric = FabricConfig {
            // P-81: each peer has a domain of its own.
            separate_peers: true,
            ..fabric
        };
        Ok(Self {
            fabric: Fabric::new(provider, fabric)?,
            node,
            interface,
            unanswered: BTreeMap::new(),
            overdue: VecDeque::new(),
        })
    }

    /// # Errors
    /// As [`Provider::listen`].
    pub fn listen(
        &mut self,
        provider: &mut dyn Provider,
        address: &Address,
    ) -> Result<Listener, VerbsError> {
        self.fabric.listen(provider, address)
    }

    /// As [`Fabric::prove_with`].
    pub fn prove_with(&mut self, keys: Keyring, random: SecureRandom) {
        self.fabric.prove_with(keys, random);
    }

    /// As [`MemoryNode::set_capacity`].
    pub fn set_capacity(&mut self, capacity: Bytes) {
        self.node.borrow_mut().set_capacity(capacity);
    }

    /// Of the node, whatever the interface.
    pub fn status(&self) -> NodeStatus {
        self.node.borrow().status()
    }

    /// Of the node, whatever the interface.
    pub fn counters(&self) -> NodeCounters {
        *self.node.borrow().counters()
    }

    pub const fn interface(&self) -> Interface {
        self.interface
    }

    pub const fn fabric_counters(&self) -> &FabricCounters {
        self.fabric.counters()
    }

    /// One turn of the fabric, and of the node whatever it brought.
    pub fn turn(&mut self, provider: &mut dyn Provider, now: Time) -> Turn {
        let mut turn = self.fabric.turn(provider, now);
        while let Some(event) = self.fabric.poll_event() {
            turn.progressed = true;
            self.handle_event(provider, event);
        }
        if turn.progressed {
            self.note_fabric();
        }
        turn
    }

    /// For whoever asks through another interface.
    fn note_fabric(&self) {
        let counters = self.fabric.counters();
        self.node.borrow_mut().note_fabric(self.interface, counters);
    }

    const fn caller(&self, connection: ConnectionId) -> Caller {
        Caller {
            interface: self.interface,
            connection,
        }
    }

    /// The oldest overdue handler not yet taken, for the log.
    pub fn poll_overdue(&mut self) -> Option<OverdueHandler> {
        self.overdue.pop_front()
    }

    /// Drops all clients of the interface, frees their memory and gives everything back to the provider.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] if the provider keeps a region.
    pub fn shutdown(&mut self, provider: &mut dyn Provider) -> Result<(), VerbsError> {
        // The queue pairs must be gone before the regions that peers reach through them, and the
        // protection domain must outlive the regions.
        // What of it fails is tried again below, when the clients' memory is free.
        let _ = self.fabric.disconnect_all(provider);
        while let Some(event) = self.fabric.poll_event() {
            self.handle_event(provider, event);
        }
        self.node.borrow_mut().clear(provider, self.interface);
        self.fabric.shutdown(provider)
    }

    fn handle_event(&mut self, provider: &mut dyn Provider, event: FabricEvent<NoBuffer>) {
        match event {
            FabricEvent::Request {
                connection,
                request,
                body,
                ..
            } => {
                // The connection is gone: there is nobody to do anything for.
                let Some(domain) = self.fabric.domain_of(connection) else {
                    return;
                };
                self.note_fabric();
                let caller = self.caller(connection);
                let mut node = self.node.borrow_mut();
                let reply = node.handle_request(provider, domain, caller, &body);
                drop(node);
                // A client whose connection has ended needs no reply, and what it was given is
                // released with the event of that end. One that cannot take a reply of this length
                // waits on, and the watchdog finds it.
                if self.fabric.reply(provider, request, &reply).is_err() {
                    let opcode = NodeRequest::parse(&body).map_or("unknown", NodeRequest::name);
                    self.unanswered.insert(request, opcode);
                }
            }
            FabricEvent::HandlerOverdue {
                connection,
                request,
                waited,
            } => {
                // P-49: who asks for what, for the log.
                let opcode = self.unanswered.get(&request).copied();
                self.overdue.push_back(OverdueHandler {
                    connection,
                    client: self.node.borrow().client_of(self.caller(connection)),
                    opcode: opcode.unwrap_or("unknown"),
                    waited,
                });
            }
            FabricEvent::Disconnected { connection } => {
                let caller = self.caller(connection);
                self.node.borrow_mut().handle_disconnected(provider, caller);
                let fabric = &self.fabric;
                self.unanswered
                    .retain(|&request, _| fabric.waiting_request(request).is_some());
            }
            // A client exists once it has opened its connection by a request.
            FabricEvent::Accepted { .. } => {}
            // A connection's end decides.
            FabricEvent::Suspected { .. } | FabricEvent::Heard { .. } => {}
            // This side neither connects nor calls.
            FabricEvent::Connected { .. }
            | FabricEvent::ConnectFailed { .. }
            | FabricEvent::Replied { .. }
            | FabricEvent::Outcome { .. }
            | FabricEvent::Quarantined { .. }
            | FabricEvent::Quiesced { .. } => {}
        }
    }
}
