//! What the recorded stacks did.

/// Bad habits. The default is to have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Habits {
    /// A reply finds its call by the slot's index alone, and a slot is given away again when its
    /// call has timed out (FIT, April 2018).
    pub slots_without_generation: bool,
    /// A call that timed out keeps its slot for ever (FIT).
    pub leaks_slot_at_timeout: bool,
    /// The peer writes its reply into the caller's memory, which the caller has back when the call
    /// times out (FIT: one key over all memory, addresses of stack frames).
    pub replies_by_remote_write: bool,
    /// A failed completion is a note in the log; then its buffer is read as if a message had come,
    /// and the connection stays in use (FIT, April 2018).
    pub reads_failed_completions: bool,
    /// Nobody looks at what posting a receive returned (FIT, 15 September 2018).
    pub posts_unchecked: bool,
    /// A used receive is posted by the poller and once more by a worker (FIT, 15 September 2018).
    pub posts_receives_twice: bool,
    /// After a send nothing else is done until its completion is there (FIT, 11 September 2018).
    pub waits_for_completion_for_ever: bool,
    /// A waiter asks to be run again at once (FIT, 11 September 2018).
    pub spins_while_waiting: bool,
    /// One completion queue for all connections, as long as one connection needs (FIT,
    /// 8 September 2018).
    pub undersized_completion_queue: bool,
    /// A one-sided operation that times out gives its buffer back (FIT; o2iblnd before its fences).
    pub returns_buffer_at_timeout: bool,
    /// When the peer is down every buffer is given back at once, and again when its own completion
    /// comes (what the driver author of 2008 planned against).
    pub pulls_descriptors_back: bool,
    /// A queue pair is destroyed when Last Work Request Reached has come and a request posted
    /// after it has completed (IPoIB with a shared receive queue, 2008).
    pub waits_for_last_work_request_event: bool,
    /// A queue pair is destroyed when each of its receives has been flushed (IPoIB without a shared
    /// receive queue, 2008).
    pub counts_flushed_receives: bool,
}
