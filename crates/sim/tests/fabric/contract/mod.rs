//! What the fabric promises, on every kind of simulated NIC and where it matters on shared memory, over
//! RoCE and on an RDMA device, which is in a guest (`device/`). Tests are named by the scenario that they are of.
//!
//! The environment variables `LEGATO_CALLS`, `LEGATO_LATE_REPLIES` and `LEGATO_CYCLES` make the long
//! ones as long as their scenarios say.

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
mod hostile;
mod late;
mod queues;
mod refusals;
mod shared;

/// How often, unless the environment says otherwise.
pub(crate) fn times(variable: &str, otherwise: u64) -> u64 {
    let said = std::env::var(variable).ok();
    said.map_or(otherwise, |text| text.parse().unwrap())
}
