//! Two fabrics that a test drives in virtual time, on simulated NICs, on shared memory, on software
//! RoCE NICs or on an RDMA device, and what can stand in for one of them.

mod cycle;
mod device;
mod net;
mod peer;
mod side;
mod world;

pub(crate) use cycle::cycle;
pub(crate) use device::{DeviceNet, GUEST};
pub(crate) use net::{Net, link, quiet, sim_address};
pub(crate) use peer::{EPOCH, RawPeer};
pub(crate) use side::{PIECE, Piece, Side};
pub(crate) use world::{Plan, World, life};

use legato_base::Duration;
use legato_fabric::FabricConfig;

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

pub(crate) fn answer(body: &[u8]) -> Vec<u8> {
    body.iter().rev().map(|byte| byte ^ 0x5A).collect()
}
