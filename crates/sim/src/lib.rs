//! The deterministic world: simulated NICs on a virtual wire, in virtual time, from one seed.
#![forbid(unsafe_code)]

pub mod provider;
pub mod world;
