//! Packets and messages as bytes.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

#[path = "../amount/mod.rs"]
mod amount;
#[path = "../cm/wire.rs"]
#[allow(dead_code, reason = "the fuzzer has managers and no wire")]
mod cm_wire;
mod fuzz;
#[path = "../rc/harness/mod.rs"]
#[allow(dead_code, reason = "the fuzzer has packets and no queue pairs")]
mod harness;
mod invariant_crc;
mod packets;
