//! What the fabric promises, on every kind of simulated NIC and where it matters on shared memory, over
//! RoCE and on an RDMA device, which is in a guest (`device/`). Tests are named by the scenario that they are of.
//!
//! The environment variables `LEGATO_CALLS`, `LEGATO_LATE_REPLIES`, `LEGATO_ROUNDS`, `LEGATO_CYCLES` and
//! `LEGATO_DEATHS` make the long ones as long as their scenarios say, and `LEGATO_RIG_SEED` is another seed
//! for all of them: `scripts/contract`.

mod awaited;
mod calls;
mod cancel;
mod cycles;
mod device;
mod drain;
mod endings;
mod events;
mod fences;
mod flow;
mod grants;
mod greetings;
mod hostile;
mod late;
mod ports;
mod queues;
mod receives;
mod refusals;
mod shared;
mod standstill;
