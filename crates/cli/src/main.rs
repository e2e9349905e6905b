//! The `legato` command.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod failure;
mod machine;
mod node;
mod run;
mod sim;

use clap::Parser as _;
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match args::Arguments::parse().command {
        args::Command::Run(arguments) => run::run(&arguments),
        args::Command::Node(arguments) => node::run(&arguments),
        args::Command::Sim(arguments) => sim::run(&arguments),
        args::Command::Bench(command) => bench::run(&command),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, text }) => {
            eprintln!("legato: {text}");
            ExitCode::from(code)
        }
    }
}
