//! `legato bench`: measurements that compare Legato with what it should be measured against, in
//! one run on one machine.

mod read;
mod target;

use crate::args::BenchCommand;
use crate::failure::Failure;

pub(crate) fn run(command: &BenchCommand) -> Result<u8, Failure> {
    match command {
        BenchCommand::Read(arguments) => read::run(arguments),
        BenchCommand::ReadTarget(arguments) => target::run(arguments),
    }
}
