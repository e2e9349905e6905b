//! `legato node`: a memory node as a daemon, and what one says about itself.

mod daemon;
pub(crate) mod drive;
mod interfaces;
pub(crate) mod provider;
mod refusals;
pub(crate) mod status;

pub(crate) use interfaces::CLIENTS_MAX;

use crate::args::{NodeArguments, NodeCommand};
use crate::failure::Failure;

/// What an embedded node prints on standard output once it listens.
pub(crate) const READY: [u8; 6] = *b"ready\n";

pub(crate) fn run(arguments: &NodeArguments) -> Result<u8, Failure> {
    match &arguments.command {
        Some(NodeCommand::Status(arguments)) => status::run(arguments),
        None => daemon::run(arguments),
    }
}
