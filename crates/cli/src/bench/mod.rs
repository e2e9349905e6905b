//! `legato bench`: measurements that compare Legato with what it should be measured against, in
//! one run on one machine.

mod comparison;
mod contract;
mod fault;
mod program;
pub(crate) mod read;
mod target;

use crate::args::BenchCommand;
use crate::failure::Failure;

pub(crate) fn run(command: &BenchCommand) -> Result<u8, Failure> {
    match command {
        BenchCommand::Contract(arguments) => contract::run(arguments),
        BenchCommand::Fault(arguments) => fault::run(arguments),
        BenchCommand::Touch(arguments) => fault::touch::run(arguments),
        BenchCommand::Program(arguments) => program::run(arguments),
        BenchCommand::Read(arguments) => read::run(arguments),
        BenchCommand::ReadTarget(arguments) => target::run(arguments),
    }
}
