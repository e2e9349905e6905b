//! The kernel's interface to ask that idle processors poll instead of halting
//! (Documentation/power/pm_qos_interface.rst). Who may open it may slow the whole machine's saving of power,
//! so that it usually is the superuser.

use crate::args::IdlePollArgument;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;

pub(crate) const DEVICE: &str = "/dev/cpu_dma_latency";

/// A request that asks for nothing yet, and ends with its last descriptor. None if there is to be none, or
/// this user may not: agents do without.
pub(crate) fn open_request(argument: IdlePollArgument) -> Option<OwnedFd> {
    match argument {
        IdlePollArgument::Auto => open().ok().map(OwnedFd::from),
        IdlePollArgument::Never => None,
    }
}

pub(crate) fn open() -> std::io::Result<File> {
    OpenOptions::new().write(true).open(DEVICE)
}
