//! What a channel adapter finds around it.

use super::Alarm;
use super::completions::CompletionToCome;
use crate::WorkQueue;
use crate::cm::{ConnectionId, Gid};
use crate::nic::{Posted, QueuedCompletion};
use legato_base::{Duration, Time};
use legato_verbs::{
    CompletionStatus, Event, LocalKey, QueuePair, QueuePairNumber, ScatterGatherEntry, VerbsError,
    WorkRequestId,
};

/// The clock, the network and the memory of a machine: what the adapter of a simulated one and one
/// made of sockets do not have in common. All calls come from inside a call of the adapter, and
/// nothing in here waits.
///
/// The methods with a body are for who looks on or lets things go wrong; hardware needs none.
pub trait Surroundings {
    /// Room for one packet, which its owner may keep larger, for headers before and a checksum
    /// behind it.
    type Buffer: AsMut<[u8]>;

    fn now(&self) -> Time;

    /// Calls [`super::ChannelAdapter::alarm`] at that time, or later. An alarm that was set is not
    /// taken back; one that is not wanted any more does nothing.
    fn set_alarm(&mut self, at: Time, alarm: Alarm);

    /// May the adapter give the link a packet more? Connection management does not ask: it has few
    /// packets, and one that is lost is sent again.
    fn link_has_room(&mut self) -> bool;

    /// The link had no room: calls [`super::ChannelAdapter::link_free`] once, when it has.
    fn watch_link(&mut self);

    /// A buffer of at least `room` bytes; what is in them does not matter.
    fn take_buffer(&mut self, room: usize) -> Self::Buffer;

    /// A buffer that was not sent.
    fn give_buffer(&mut self, buffer: Self::Buffer);

    /// Sends the first `length` bytes of a buffer: from the base transport header to before the
    /// invariant CRC, which is the network's to add because it knows the addresses. Packets of one
    /// flow should not overtake each other. Where there is nobody the packet is lost.
    fn send(&mut self, flow: Flow, to: Gid, buffer: Self::Buffer, length: usize);

    /// Do packets to a peer stay in this machine, where they share no link with others'?
    fn is_inside(&self, peer: Gid) -> bool {
        let _ = peer;
        false
    }

    /// Zero bytes for a region. The adapter never gives a number twice.
    ///
    /// # Errors
    /// If there is no memory.
    fn allocate_memory(
        &mut self,
        region: RegionNumber,
        key: LocalKey,
        length: u64,
    ) -> Result<(), VerbsError>;

    /// The region is no more: nobody asks for its bytes again.
    fn release_memory(&mut self, region: RegionNumber);

    /// Copies bytes that the adapter's keys allow. False if they are not there, which happens only
    /// if the memory is lost in another way than by [`Self::release_memory`].
    fn read_memory(&self, region: RegionNumber, offset: u64, into: &mut [u8]) -> bool;

    /// The same for writing.
    fn write_memory(&mut self, region: RegionNumber, offset: u64, from: &[u8]) -> bool;

    /// Replaces the 8 bytes at an offset, in the host's byte order, by what `change` makes of them,
    /// and returns what was there. Atomic among what the adapter does; towards the machine's own
    /// accesses as far as the memory can (`atomic_cap` of ibv_query_device(3)).
    fn update_memory(
        &mut self,
        region: RegionNumber,
        offset: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Option<u64>;

    /// So long the adapter takes to look at a request that was posted.
    fn doorbell_delay(&mut self) -> Duration {
        Duration::ZERO
    }

    /// # Errors
    /// Why a request is refused that the adapter would take.
    fn may_post(&mut self, queue: WorkQueue) -> Result<(), VerbsError> {
        let _ = queue;
        Ok(())
    }

    /// # Errors
    /// Why a change to the error state fails that the adapter would make.
    fn may_enter_error(&mut self) -> Result<(), VerbsError> {
        Ok(())
    }

    /// How often the owner gets an event: once.
    fn event_raised(&mut self, event: &Event) -> u32 {
        let _ = event;
        1
    }

    /// Does a completion go into its queue now? If not, [`super::ChannelAdapter::store`] may put it
    /// there later; its slot is not free before it was polled.
    fn completion_due(&mut self, completion: &CompletionToCome) -> bool {
        let _ = completion;
        true
    }

    /// A completion has gone into its queue, or found no room there.
    fn completion_stored(&mut self, completion: &CompletionToCome, posted: Posted) {
        let _ = (completion, posted);
    }

    /// Is a completion that is polled the one for which its request's slot becomes free?
    fn frees_slot(
        &mut self,
        into: legato_verbs::CompletionQueue,
        polled: &QueuedCompletion,
    ) -> bool {
        let _ = (into, polled);
        true
    }

    /// The timer of a queue pair was due.
    fn timer_expired(&mut self) {}

    /// A connection was accepted, or is established.
    fn connected(&mut self, queue_pair: QueuePair, peer: Gid, connection: ConnectionId) {
        let _ = (queue_pair, peer, connection);
    }

    /// The adapter may write into these buffers until [`Self::buffers_returned`].
    fn buffers_lent(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WorkRequestId,
        entries: &[ScatterGatherEntry],
    ) {
        let _ = (queue_pair, wr_id, entries);
    }

    /// A request, with buffers or without, has completed.
    fn buffers_returned(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WorkRequestId,
        failure: Option<CompletionStatus>,
    ) {
        let _ = (queue_pair, wr_id, failure);
    }

    /// All requests of a queue pair are their poster's again, without a completion.
    fn all_buffers_returned(&mut self, queue_pair: QueuePair) {
        let _ = queue_pair;
    }
}

/// A region's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionNumber(pub u64);

/// Whose packets these are. A network that spreads flows over paths may tell them apart by the
/// number, as RoCEv2 does by the UDP source port (annex A17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Of the general service queue pair: management datagrams.
    Management,
    QueuePair {
        queue_pair: QueuePair,
        number: QueuePairNumber,
    },
}
