//! Two fabrics that a test drives in virtual time, on simulated NICs, on shared memory, on software
//! RoCE NICs or on an RDMA device, and what can stand in for one of them.

mod cycle;
mod device;
mod net;
mod peer;
mod side;
mod world;

pub(crate) use cycle::{cycle, cycles};
pub(crate) use device::{DeviceNet, GUEST};
pub(crate) use net::{Net, link, quiet, sim_address};
pub(crate) use peer::{EPOCH, HELLO, RawPeer};
pub(crate) use side::{PIECE, Piece, Side};
pub(crate) use world::{Plan, World, life};

use legato_base::Duration;
use legato_fabric::{Cause, FabricConfig, ResetCause};
use legato_verbs::CompletionStatus;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
pub(crate) const CREDITS: u32 = 4;

pub(crate) fn config() -> FabricConfig {
    FabricConfig {
        connections_max: 3,
        credits: CREDITS,
        message_length_max: 200,
        one_sided_max: 8,
        // So that every test passes the wrap of the generations early.
        first_generation: u32::MAX - 20,
        ..FabricConfig::default()
    }
}

/// An access that the peer has refused may end by the answer or by the end of the connection, which
/// overtake each other on the way.
pub(crate) fn is_refusal(cause: Cause) -> bool {
    let access = Cause::Completion(CompletionStatus::RemoteAccess);
    [access, Cause::Reset(ResetCause::PeerDisconnected)].contains(&cause)
}

pub(crate) fn answer(body: &[u8]) -> Vec<u8> {
    body.iter().rev().map(|byte| byte ^ 0x5A).collect()
}

/// A number, unless the environment says another.
pub(crate) fn times(variable: &str, otherwise: u64) -> u64 {
    let said = std::env::var(variable).ok();
    said.map_or(otherwise, |text| text.parse().unwrap())
}
