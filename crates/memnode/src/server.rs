//! A memory node on a fabric: one loop body for the daemon, the simulator and the tests.

use crate::{MemoryNode, NodeConfig};
use legato_base::Time;
use legato_fabric::{Fabric, FabricConfig, FabricCounters, FabricEvent, NoBuffer, Turn};
use legato_verbs::{Address, Listener, Provider, VerbsError};

/// A memory node and the fabric that it serves on.
#[derive(Debug)]
pub struct NodeServer {
    fabric: Fabric<NoBuffer>,
    node: MemoryNode,
}

impl NodeServer {
    /// # Errors
    /// As [`Fabric::new`].
    pub fn new(
        provider: &mut dyn Provider,
        fabric: FabricConfig,
        node: NodeConfig,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            fabric: Fabric::new(provider, fabric)?,
            node: MemoryNode::new(node),
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

    pub const fn node(&self) -> &MemoryNode {
        &self.node
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
        turn
    }

    /// Drops all clients, frees all memory and gives everything back to the provider.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] if the provider keeps a region.
    pub fn shutdown(&mut self, provider: &mut dyn Provider) -> Result<(), VerbsError> {
        // The queue pairs must be gone before the regions that peers reach through them, and the
        // protection domain must outlive the regions.
        self.fabric.disconnect_all(provider)?;
        while let Some(event) = self.fabric.poll_event() {
            self.handle_event(provider, event);
        }
        self.node.clear(provider);
        self.fabric.shutdown(provider)
    }

    fn handle_event(&mut self, provider: &mut dyn Provider, event: FabricEvent<NoBuffer>) {
        match event {
            FabricEvent::Request {
                connection,
                request,
                body,
            } => {
                let domain = self.fabric.domain();
                let reply = self
                    .node
                    .handle_request(provider, domain, connection, &body);
                // A client whose connection has ended needs no reply, and what it was given is
                // released with the event of that end.
                let _ = self.fabric.reply(provider, request, &reply);
            }
            FabricEvent::Disconnected { connection } => {
                self.node.handle_disconnected(provider, connection);
            }
            // A client exists once it has opened its connection by a request.
            FabricEvent::Accepted { .. } => {}
            // This side neither connects nor calls.
            FabricEvent::Connected { .. }
            | FabricEvent::ConnectFailed { .. }
            | FabricEvent::Replied { .. }
            | FabricEvent::Outcome { .. }
            | FabricEvent::Quiesced { .. } => {}
        }
    }
}
