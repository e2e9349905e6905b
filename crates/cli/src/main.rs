//! The `legato` command.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod doctor;
mod failure;
mod generated;
mod machine;
mod net;
mod node;
mod output;
mod own_process;
mod ps;
mod run;
mod secret;
mod sim;
mod users;

use failure::{EXIT_REFUSED, EXIT_RUN_REFUSED, Failure};
use std::process::ExitCode;

fn main() -> ExitCode {
    end_at_a_panic();
    own_process::survive_file_size_limit();
    let command = match args::parse() {
        Ok(arguments) => arguments.command,
        Err(error) => return args::misused(&error),
    };
    let refused = match command {
        args::Command::Run(_) => EXIT_RUN_REFUSED,
        _ => EXIT_REFUSED,
    };
    let result = match command {
        args::Command::Run(arguments) => run::run(&arguments),
        args::Command::Launch(arguments) => run::launch::run(&arguments),
        args::Command::Keep(arguments) => run::keeper::run(&arguments),
        args::Command::Node(arguments) => node::run(&arguments),
        args::Command::Secret(args::SecretCommand::New(arguments)) => secret::run(&arguments),
        args::Command::Net(command) => net::run(&command),
        args::Command::Ps(arguments) => ps::run(&arguments),
        args::Command::Doctor(arguments) => doctor::run(&arguments),
        args::Command::AllowUsers(arguments) => users::run(&arguments),
        args::Command::Sim(arguments) => sim::run(&arguments),
        args::Command::Bench(command) => bench::run(&command),
        args::Command::Completions(arguments) => generated::completions(&arguments),
        args::Command::Manual(arguments) => generated::manual(&arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, text }) => {
            if !text.is_empty() {
                output::tell(text);
            }
            ExitCode::from(code.unwrap_or(refused))
        }
    }
}

/// A panic in any thread ends the process with SIGABRT: the others may wait for what that thread has,
/// and nobody knows in what state it is.
fn end_at_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    const CHILD: &str = "LEGATO_TEST_PANIC";

    /// Started by the test below: a thread that nobody waits for panics.
    #[test]
    fn child_panics() {
        if std::env::var_os(CHILD).is_some() {
            super::end_at_a_panic();
            std::thread::spawn(|| panic!("of a thread"));
            std::thread::park();
        }
    }

    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "tests::child_panics", "--nocapture"]);
        let output = child.env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.signal(), Some(Signal::ABORT.as_raw()));
        assert!(String::from_utf8_lossy(&output.stderr).contains("of a thread"));
    }
}
