//! `legato doctor`: can this machine run programs on far memory, how fast, and what to change.

mod check;
mod kernel;
mod limits;
mod rdma;
mod speed;

use crate::args::DoctorArguments;
use crate::failure::{EXIT_REFUSED, Failure};
use crate::net;
use crate::output::print;
use crate::users::Helper;
use check::{Report, Verdict};
use legato_pager::uffd::Mask;
use legato_pager::uffd::probe::Offer;
use std::os::unix::ffi::OsStrExt as _;

/// As the agent has it: what tests hide of the kernel.
const MASK_VARIABLE: &str = "LEGATO_MASK_FEATURES";

pub(crate) fn run(arguments: &DoctorArguments) -> Result<u8, Failure> {
    let names = std::env::var_os(MASK_VARIABLE).unwrap_or_default();
    let mask = Mask::parse(names.as_bytes()).map_err(Failure::refused)?;
    let offer = Offer::of_this_machine(mask, &Helper);
    let mut checks = kernel::checks(&offer);
    checks.extend(limits::checks());
    checks.push(rdma::check(&net::rdma::ports()));
    let speeds = match (arguments.no_bench, &offer.features) {
        (true, _) => Vec::new(),
        (false, Ok(offered)) => speed::measure(Some(offered), mask),
        (false, Err(_)) => speed::measure(None, mask),
    };
    let report = Report { checks, speeds };
    if arguments.json {
        print(format_args!("{:#}", report.json()))?;
    } else {
        print(report.text())?;
    }
    Ok(match report.verdict() {
        Verdict::Ok | Verdict::Warning => 0,
        Verdict::Cannot => EXIT_REFUSED,
    })
}
