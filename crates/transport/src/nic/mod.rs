//! The objects around a queue pair: completion queues, receive queues, memory keys, events. They
//! are data structures that decide; who calls them moves bytes, wakes waiters and ends queue pairs.

mod completion_queue;
mod events;
mod keys;
mod receive_queue;
mod shared_receive_queue;
mod table;

pub use completion_queue::{
    CompletionQueue, CompletionQueuePolicy, Destroyed, Overrun, Posted, QueueDead,
    QueuedCompletion, Removed,
};
pub use events::{EventLost, EventQueue};
pub use keys::{Accessor, Binding, KeyError, Keys, Place, Region};
pub use receive_queue::{ReceiveQueue, ReceiveQueueSize, Reclaim, Taken};
pub use shared_receive_queue::SharedReceiveQueues;
pub use table::{Handle, Table};
