//! The real `legato` binary, with real programs under it. A machine without full userfaultfd, or
//! without what `scripts/setup` installs, fails here: these tests are never skipped.

#![allow(
    clippy::unwrap_used,
    reason = "what a test did not expect ends the test"
)]

mod harness;

mod agent_time;
mod bench;
mod budget;
mod command_line;
mod device_port;
mod devices;
mod doctor;
mod filters;
mod flood;
mod forked;
mod fuzz;
mod idle_poll;
mod injection;
mod killed;
mod leftovers;
mod limit;
mod local;
mod lost;
mod made_code;
mod masks;
mod matrix;
mod memory;
mod namespaces;
mod nodes;
mod pattern;
mod peers;
mod proxied;
mod ps;
mod rdma;
mod real_programs;
mod recorded;
mod redis;
mod refusals;
mod sanitizers;
mod secret;
mod semantics;
mod signals;
mod starts;
mod static_programs;
mod status;
mod steps;
mod stopped;
mod third_party;
mod thread_states;
mod troubleshooting;
mod users;
mod wire;
