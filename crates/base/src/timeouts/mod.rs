//! How long anything is waited for that may never come: every time limit at whose end Legato gives
//! something up, in one place. What paces work (how often one looks, rests, tries again) is where the
//! work is.
//!
//! A machine that is merely slow, or a tree of processes that was stopped for ten seconds, must not
//! reach any of them at the price of a page or of a program. So what would cost that is several times
//! as long, and time in which the waiting side itself did not run does not count ([`Patience`]).
//!
//! | limit | is | protects | at its end |
//! |---|---|---|---|
//! | [`LIVENESS`] | 120 s | who waits for a peer that does not run any more | the connection ends; an agent's pages at the node are lost, a node takes a client's memory back. All other limits of a connection are parts of it (`fabric/src/timeouts.rs`) |
//! | [`OUTAGE`] | 30 s | who waits from an interface or an address of this machine that does not come back | as above |
//! | [`NODE_REQUEST`] | 132 s | a program from a node that is alive and leaves one request unanswered | of a page: as above; of more room: the node counts as full for now |
//! | [`ROCE_ACK_CODE`], [`ROCE_RETRIES`] | 34 s | as `LIVENESS`, over software RoCE, where nothing tells that a machine is dead | as above |
//! | [`CONNECT`] | 60 s | who starts from a node that does not answer, and a node from strangers who say nothing | the program is not started, with a message; the stranger's socket is closed |
//! | [`ROCE_CONNECT_REPEAT`] | 4 s | the same, for one attempt over software RoCE | an agent tries again until `CONNECT` is over |
//! | [`NODE_ANSWER`] | 15 s | who asks a node by its address from silence | `legato run` and `legato node status` end with a message, before anything is started |
//! | [`DATAGRAMS`] | 2 s | the same from networks that let no UDP through | TCP is tried |
//! | [`NODE_START`] | 60 s | `legato run` from a node of its own that hangs | the node is killed, and the run ends with a message before the program starts |
//! | [`NODE_STOP`] | 10 s | the end of `legato run` from such a node | it is killed; nobody uses it any more |
//! | [`HELPER_ANSWER`] | 10 s | `legato run` and `legato doctor` from a helper that hangs (`legato-uffd`) | it is killed; the program has no right to far memory |
//! | [`PROXY_ANSWER`] | 120 s | an agent from a supervisor that has its NIC and hangs | as where the NIC is removed: the pages that are far are lost |
//! | [`STARVATION`] | 2 s | a program from waiting for memory for ever | it is ended, with a message |
//! | [`STARVATION_SHARED`] | 15 s | the same where others have a part of the cache that they may give back | as above |
//! | [`FAR_MEMORY`] | 10 s | the same where all far memory is taken, and others may give theirs back | as above |
//! | [`ANNOUNCEMENTS`] | 10 s | the agent from a thread that gets no processor after it has changed the address space | what the threads have done is taken in the order in which it was read, and checked against the mappings; the parent of a child that cannot be asked what it has inherited is ended, with a message |
//! | [`DROPS`] | 10 s | the search of other address spaces for pages that the agent does not know from a thread that gets no processor to drop what it has announced | the space is searched later; until then such pages of it stay local |
//! | [`HAND_ANSWER`] | 60 s | an agent from the task in a forked child that takes its pages out | the child is ended, with a message, if pages of it are lost with the task; else its pages stay local |
//! | [`CHILD_REACH`] | 2 s | a forked child from waiting for ever until pages can leave it | it gets memory beyond the limit |
//! | [`CACHE_SHARE`] | 500 ms | a process that needs a larger part of the cache from others that do not give theirs up | it gets the part, beyond the limit |
//! | [`OWN_AGENT`] | 1 s | the limit from a program that does not bring its agent itself | it is brought in; one that comes as well finds that it is served |
//! | [`PROCESS_STOP`], [`THREAD_STOP`] | 500 ms, 50 ms | a process, and who brings an agent into it, from a thread that cannot be stopped; not from one that gets no processor | the process runs on; it is tried again |
//! | [`PROGRAM_START`] | 50 ms of its processor time | the limit from a static program that makes no system call as it starts | the agent is brought in; musl's word for the ends of threads stays unknown, and its page may leave |
//! | [`ORPHAN`] | 100 ms | a program whose agent is dead from waiting for pages for ever | if it is not on its way to its end itself, it is killed, with a message |
//! | [`UNSERVED`] | 1 s | the same, of a process that shares the memory of a program that has ended | its accesses to far pages fail (SIGBUS), with a message |

mod patience;

pub use patience::Patience;

use crate::Duration;

/// A memory node and an agent believe each other alive in silence. Of processes on one machine the
/// socket tells at once that one has died; this is for frozen ones. Long, because there is one copy of
/// each page, so that giving up means losing memory.
pub const LIVENESS: Duration = Duration::from_secs(120);
/// Cables are changed and networks set up anew in less. Less than [`ROCE_RETRIES`] last: whoever does not come
/// back is found to be this machine, not the peer.
pub const OUTAGE: Duration = Duration::from_secs(30);
/// A page or an extent that was asked for: longer than [`LIVENESS`], so that of a node that is frozen
/// the connection's end decides.
pub const NODE_REQUEST: Duration = Duration::from_secs(132);

/// Local ACK timeout of software RoCE, 4.096 us * 2^15 = 134 ms, twice as long each time. Packets that
/// are lost are sent again by the measured round trip, long before (IB spec 9.7.6.1.3).
pub const ROCE_ACK_CODE: u8 = 15;
/// So often: a peer that has said nothing for the sum of all eight timeouts, 34 s, is given up.
pub const ROCE_RETRIES: u8 = 7;
/// Connection management says everything again after so long, sixteen times: networks of machines
/// have a round trip of less, and `rdma_cm`'s 4 s are for subnet managers.
pub const ROCE_CONNECT_REPEAT: Duration = Duration::from_millis(250);

/// The whole way to a connection.
pub const CONNECT: Duration = Duration::from_secs(60);
/// A memory node that a user names.
pub const NODE_ANSWER: Duration = Duration::from_secs(15);
/// The same over UDP, where another way is left: a lost request is sent again several times meanwhile.
pub const DATAGRAMS: Duration = Duration::from_secs(2);
/// A memory node of a run's own reserves address space and opens a socket.
pub const NODE_START: Duration = Duration::from_secs(60);
/// It gives its memory back.
pub const NODE_STOP: Duration = Duration::from_secs(10);
/// The far half of a NIC does nothing that waits, but may open a device and have memory pinned.
pub const PROXY_ANSWER: Duration = Duration::from_secs(120);

/// Memory that could not leave is tried again ten times a second.
pub const STARVATION: Duration = Duration::from_secs(2);
pub const STARVATION_SHARED: Duration = Duration::from_secs(15);
/// What a process had comes back within a second of its end, from a node on a busy machine too.
pub const FAR_MEMORY: Duration = Duration::from_secs(10);
/// Thirty threads beside others of higher priority wait for a processor for more than a second.
pub const ANNOUNCEMENTS: Duration = Duration::from_secs(10);
pub const DROPS: Duration = Duration::from_secs(10);

/// An answer takes some 20 us, or as long as a busy machine lets the task wait for a processor.
pub const HAND_ANSWER: Duration = Duration::from_secs(60);
/// Most children run another program or end within this.
pub const CHILD_REACH: Duration = Duration::from_secs(2);
pub const CACHE_SHARE: Duration = Duration::from_millis(500);
/// Loading many shared objects can take long.
pub const OWN_AGENT: Duration = Duration::from_secs(1);
/// All threads of a process together. A thread in an uninterruptible sleep (a page fault inside the
/// kernel, a parent in vfork) does not stop.
pub const PROCESS_STOP: Duration = Duration::from_millis(500);
/// One, before the next is tried.
pub const THREAD_STOP: Duration = Duration::from_millis(50);
/// From a static program's first instruction to where its C library has named its thread's word, as
/// far as it runs: some microseconds of work.
pub const PROGRAM_START: Duration = Duration::from_millis(50);
/// A process that is being killed as a whole (`SIGKILL`, out of memory) can lose its agent a moment
/// before it is gone itself.
pub const ORPHAN: Duration = Duration::from_millis(100);
/// The answer of a process that makes one system call.
pub const HELPER_ANSWER: Duration = Duration::from_secs(10);
/// A process that is being killed lets its memory go within this, on a busy machine too.
pub const UNSERVED: Duration = Duration::from_secs(1);
