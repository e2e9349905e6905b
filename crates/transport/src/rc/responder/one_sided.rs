//! READ and atomics.

use super::message::LENGTH_MAX;
use super::{Executed, Message, Refusal, Responder};
use crate::Host;
use crate::rc::replies::TooMany;
use crate::wire::{AtomicHeader, RemoteHeader};
use legato_verbs::{AccessFlags, RemoteAddress};

impl From<TooMany> for Refusal {
    fn from(_: TooMany) -> Self {
        Self::INVALID
    }
}

impl Responder {
    pub(super) fn read(
        &mut self,
        request: RemoteHeader,
        host: &impl Host,
    ) -> Result<Executed, Refusal> {
        self.check_one_sided(AccessFlags::REMOTE_READ)?;
        if request.length > LENGTH_MAX {
            return Err(Refusal::INVALID);
        }
        // Of an empty one neither key nor address is looked at (IB spec 9.7.4.1.4).
        if request.length > 0 {
            let target = RemoteAddress {
                key: request.key,
                address: request.address,
            };
            host.check_remote(target, request.length, AccessFlags::REMOTE_READ)?;
        }
        self.replies.make_room()?;
        self.message_completed();
        let packets = self.path.mtu.packets(request.length);
        self.replies
            .add_read(self.expected, packets, self.messages, request);
        Ok(Executed::Message(packets))
    }

    pub(super) fn atomic(
        &mut self,
        request: AtomicHeader,
        host: &mut impl Host,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Executed, Refusal> {
        self.check_one_sided(AccessFlags::REMOTE_ATOMIC)?;
        if !request.address.is_multiple_of(8) {
            return Err(Refusal::INVALID);
        }
        let target = RemoteAddress {
            key: request.key,
            address: request.address,
        };
        host.check_remote(target, 8, AccessFlags::REMOTE_ATOMIC)?;
        self.replies.make_room()?;
        let original = host.update_remote(target, change)?;
        self.message_completed();
        self.replies
            .add_atomic(self.expected, self.messages, original);
        Ok(Executed::Message(1))
    }

    /// Permission of the queue pair comes before the key; and it is no time for it while another
    /// message is arriving.
    const fn check_one_sided(&self, access: AccessFlags) -> Result<(), Refusal> {
        if matches!(self.message, Message::None) && self.access.contains(access) {
            Ok(())
        } else {
            Err(Refusal::INVALID)
        }
    }
}
