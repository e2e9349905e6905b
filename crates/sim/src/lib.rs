//! The deterministic world: simulated NICs on a virtual wire, in virtual time, from one seed.
#![forbid(unsafe_code)]

pub mod fault;
pub mod naive;
pub mod provider;
pub mod scenario;
pub mod world;
