//! Calls that outlive their connections: sessions, their servers, and the watchdog over handlers,
//! on the simulated network. Tests are named by the scenario that they are of.

mod chaos;
mod connecting;
mod duplicates;
mod ending;
mod handlers;
mod machine;
mod random;
mod world;
