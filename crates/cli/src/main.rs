//! The `legato` command.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod doctor;
mod failure;
mod machine;
mod net;
mod node;
mod run;
mod secret;
mod sim;

use clap::Parser as _;
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match args::Arguments::parse().command {
        args::Command::Run(arguments) => run::run(&arguments),
        args::Command::Launch(arguments) => run::launch::run(&arguments),
        args::Command::Node(arguments) => node::run(&arguments),
        args::Command::Secret(args::SecretCommand::New(arguments)) => secret::run(&arguments),
        args::Command::Net(command) => net::run(&command),
        args::Command::Doctor(arguments) => doctor::run(&arguments),
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
