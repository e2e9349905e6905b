//! The command line.

use crate::failure::by_name;
use clap::{Args, Parser, Subcommand, ValueEnum};
use legato_base::Bytes;
use legato_base::wire::control::{ADDRESS_SIZE, NODES_MAX};
use legato_verbs::{Address, AddressError, UnresolvedAddress};
use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

mod bench;
mod environment;
mod misuse;
mod sim;

pub(crate) use bench::{
    BenchAgainstArguments, BenchCommand, BenchContractArguments, BenchFaultArguments,
    BenchProgramArguments, BenchReadArguments, BenchTargetArguments, BenchTouchArguments, SwapKind,
    TouchAccess, TouchOrder,
};
pub(crate) use environment::parse;
pub(crate) use misuse::misused;
pub(crate) use sim::SimArguments;

/// What of a program's memory stays local if nothing is said.
const CACHE_DEFAULT: &str = "1GiB";

const AFTER_HELP: &str = "\
Every option has a default in the environment: LEGATO_CACHE is that of --cache, LEGATO_IDLE_POLL
that of --idle-poll. Where an option takes no value, its variable says yes or no. The command line
goes before.";

/// Far memory for unmodified Linux programs.
#[derive(Debug, Parser)]
#[command(name = "legato", version, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArguments),
    Ps(PsArguments),
    /// The process that becomes a program without a dynamic loader.
    #[command(hide = true)]
    Launch(LaunchArguments),
    /// The process that holds userfaultfds as long as a page of theirs could be read.
    #[command(hide = true)]
    Keep(KeepArguments),
    Node(NodeArguments),
    #[command(subcommand)]
    Secret(SecretCommand),
    /// What this machine has to reach memory nodes by.
    #[command(subcommand)]
    Net(NetCommand),
    Doctor(DoctorArguments),
    AllowUsers(AllowUsersArguments),
    Sim(SimArguments),
    #[command(subcommand)]
    Bench(BenchCommand),
    Completions(CompletionsArguments),
    Manual(ManualArguments),
}

const RUN_AFTER_HELP: &str = "\
Exit status:
  the program's own, or 128+N if signal N ended it;
  125  legato itself could not: wrong arguments, missing rights, a memory node that refuses,
       a program that cannot run on far memory; with --strict, another process that cannot;
  126  the program is not executable;
  127  the program was not found.

Signals: those of the terminal reach the program directly. SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1
and SIGUSR2 that a process sends to legato are passed on to the program.";

/// Run a program whose memory may exceed its local cache.
///
/// At most --cache of the anonymous memory of all its processes together stays in local RAM; the
/// rest lives at memory nodes. Without --nodes, two memory nodes run on this machine as long as the
/// program.
#[derive(Debug, Args)]
#[command(after_help = RUN_AFTER_HELP)]
pub(crate) struct RunArguments {
    /// Local memory of all processes together, such as 64MiB.
    #[arg(long, value_name = "SIZE", default_value = CACHE_DEFAULT)]
    pub(crate) cache: Bytes,
    /// Far memory: what the memory nodes that this command starts may have, all of them together
    /// [default: half of what the machine has available].
    #[arg(long, value_name = "SIZE", conflicts_with = "nodes")]
    pub(crate) far: Option<Bytes>,
    /// Use these memory nodes and start none: shm:@name or shm:/path on this machine,
    /// verbs://host:port (through an RDMA device of this machine), roce://host:port (RoCEv2 over UDP),
    /// roce://host/service (the same, to a node at an RDMA device), roce+tcp://host:port, or host:port
    /// (the first of these that gets through) on others; either all on this machine or none.
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', value_parser = peer_address)]
    pub(crate) nodes: Vec<Address>,
    #[command(flatten)]
    pub(crate) secret: SecretArguments,
    /// While faults are so many that it pays, have idle processors poll instead of halting, which wakes
    /// a thread that waits for its page sooner. It takes the right to open /dev/cpu_dma_latency, and
    /// concerns all processors of the machine.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) idle_poll: IdlePollArgument,
    /// Say while the program runs what it has and does: in a line that changes where standard error is a
    /// terminal, which what the program writes there takes the place of, else in a line every 10 seconds.
    #[arg(long)]
    pub(crate) progress: bool,
    /// End the run, with exit status 125, when one of its processes runs without far memory. Without this it is
    /// named, with the reason, and counted in the summary. A process that ends within some 100 ms may pass unseen.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Write what happened as JSON to this file when the program has ended.
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// Print no summary.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// The program and its arguments.
    #[arg(
        value_name = "PROG",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<OsString>,
}

/// May agents ask that idle processors poll?
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdlePollArgument {
    /// When a trial has shown that it pays
    Auto,
    Never,
}

/// List the runs of this user on this machine; of root: all.
///
/// TIME is since the start, PROCESSES how many have far memory (after a +: how many have been seen without), LOCAL
/// the local memory of all processes together and its limit, FAR what they have
/// at memory nodes, FAULTS/S how many of their pages a second came or were made in the last half second.
#[derive(Debug, Args)]
pub(crate) struct PsArguments {
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Allow ordinary users to run programs on far memory, as root, once for a machine.
///
/// It installs the helper legato-uffd in /usr/local/libexec, with the capability that one call to the kernel takes
/// (CAP_SYS_PTRACE), and lets them open /dev/userfaultfd, also after the next start of the machine where that has udev. With
/// it goes userfaultfd in full mode, with which other defects of a kernel are easier to use.
#[derive(Debug, Args)]
pub(crate) struct AllowUsersArguments {
    /// Allow it to the members of this group alone.
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Take it back.
    #[arg(long, conflicts_with = "group")]
    pub(crate) undo: bool,
}

#[derive(Debug, Args)]
pub(crate) struct KeepArguments {
    /// The run's, to be removed at the end.
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct LaunchArguments {
    /// Where to wait for the word, in the abstract namespace.
    #[arg(long)]
    pub(crate) socket: String,
    /// Of the program's environment.
    #[arg(long)]
    pub(crate) control: OsString,
    #[arg(long)]
    pub(crate) preload: OsString,
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) program: PathBuf,
    /// The program's name and arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// Serve memory to programs, until SIGINT or SIGTERM.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct NodeArguments {
    #[command(subcommand)]
    pub(crate) command: Option<NodeCommand>,
    /// How much memory to serve, such as 4GiB.
    #[arg(long, value_name = "SIZE", required = true)]
    pub(crate) memory: Option<Bytes>,
    /// Where to listen, one or several: shm:/path/to/socket, or shm:@name for one that no file system shows;
    /// verbs://host:port or verbs://device/port (an RDMA device, see legato net devices),
    /// roce://host:port (UDP), roce://host/service (UDP port 4791, as devices have it),
    /// roce+tcp://host:port (TCP), or host:port for UDP, TCP and the RDMA device with that address.
    #[arg(long, value_name = "ADDR,...", required = true, value_delimiter = ',', value_parser = node_address)]
    pub(crate) listen: Vec<Address>,
    #[command(flatten)]
    pub(crate) secret: SecretArguments,
    /// Listen without a secret where other machines can reach the node, though whoever can reach it may
    /// use it and read what it holds.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Say on standard output, as one line of JSON, that the node listens.
    #[arg(long)]
    pub(crate) json: bool,
    /// End with the process that started this one and holds its standard input.
    #[arg(long, hide = true)]
    pub(crate) embedded: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    Status(StatusArguments),
}

/// Ask a memory node how much of its memory is used, and by how many clients.
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Where the node listens.
    #[arg(long, value_name = "ADDR", value_parser = peer_address)]
    pub(crate) node: Address,
    #[command(flatten)]
    pub(crate) secret: SecretArguments,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Who may connect to nodes on other machines.
#[derive(Debug, Default, Args)]
pub(crate) struct SecretArguments {
    /// A file with the secret that the nodes and those who use them share, made by `legato secret new`.
    /// It is for verbs://, roce:// and roce+tcp:// addresses.
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
}

/// Secrets that nodes and those who use them share.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    New(SecretNewArguments),
}

/// Make a new secret.
///
/// The file may be used by its owner alone (mode 0600), and one that exists is never overwritten. It
/// is to be copied to every machine that serves or uses the nodes, by a way that is safe.
#[derive(Debug, Args)]
pub(crate) struct SecretNewArguments {
    /// Where to write it [default: standard output].
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

const DOCTOR_AFTER_HELP: &str = "\
Exit status:
  0    this machine can run programs on far memory, perhaps with warnings;
  2    it cannot: something is marked `cannot`, or an argument is wrong.";

#[derive(Debug, Subcommand)]
pub(crate) enum NetCommand {
    Devices(DevicesArguments),
}

/// List what this machine has to reach memory nodes by, what is unusable and why, and what to do.
#[derive(Debug, Args)]
pub(crate) struct DevicesArguments {
    /// As JSON, for a program.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say whether this machine can run programs on far memory, how fast, and what to change.
///
/// Every check is one line: ok, warning or cannot, and why; a second line says what to do.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_AFTER_HELP)]
pub(crate) struct DoctorArguments {
    /// Measure nothing.
    #[arg(long)]
    pub(crate) no_bench: bool,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print what completes command lines of legato in a shell.
///
/// For bash: legato completions bash > ~/.local/share/bash-completion/completions/legato
#[derive(Debug, Args)]
pub(crate) struct CompletionsArguments {
    /// For which shell.
    pub(crate) shell: clap_complete::Shell,
}

/// Write the manual pages, legato(1) and one of each command.
///
/// For all users: legato manual /usr/local/share/man/man1
#[derive(Debug, Args)]
pub(crate) struct ManualArguments {
    /// Where to; it is made if it is not there, and pages of before are replaced.
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

impl RunArguments {
    /// What the parser cannot say about one argument alone.
    pub(crate) fn check(&self) -> Result<(), String> {
        // Whatever the parser does not know begins the program.
        if self.command[0].as_encoded_bytes().starts_with(b"-") {
            return Err(format!(
                "{} is not an option of legato run; options come before the program; see legato run --help",
                self.command[0].display()
            ));
        }
        if self.nodes.len() > NODES_MAX {
            return Err(format!(
                "{} memory nodes were given, and a program can use {NODES_MAX}; name fewer",
                self.nodes.len()
            ));
        }
        let mut seen = Vec::new();
        for node in &self.nodes {
            if seen.contains(&node) {
                return Err(format!("memory node {node} was given twice; name it once"));
            }
            seen.push(node);
        }
        Ok(())
    }
}

fn node_address(text: &str) -> Result<Address, String> {
    if text.len() > ADDRESS_SIZE {
        return Err(format!("longer than {ADDRESS_SIZE} bytes"));
    }
    let address = match text.parse() {
        Ok(address) => address,
        Err(AddressError::Unresolved(name)) => resolve(&name)?,
        Err(error) => return Err(error.to_string()),
    };
    match address.place() {
        Some(SocketAddr::V6(place))
            if place.ip().is_unicast_link_local() && place.scope_id() == 0 =>
        {
            let ip = place.ip();
            Err(format!(
                "{ip} is an address of each link: name the interface too, as in [{ip}%eth0]"
            ))
        }
        _ => Ok(address),
    }
}

/// Of a node that others listen at.
fn peer_address(text: &str) -> Result<Address, String> {
    match node_address(text)? {
        Address::VerbsPort(port) => Err(format!(
            "{} is a device of this machine, by whose name a node can listen; name a node's device by its \
             IP address: verbs://host:port",
            port.device
        )),
        address => Ok(address),
    }
}

fn resolve(name: &UnresolvedAddress) -> Result<Address, String> {
    let host = &name.host;
    let found = (host.as_str(), name.port).to_socket_addrs();
    let mut found = found.map_err(|error| format!("{host}: {}", by_name(&error)))?;
    let first = found
        .next()
        .ok_or_else(|| format!("{host} has no address"))?;
    Ok(name.resolve(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn run_arguments(line: &[&str]) -> RunArguments {
        match Arguments::try_parse_from(line).unwrap().command {
            Command::Run(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_address_of_a_link_has_an_interface() {
        let lo = node_address("roce://[fe80::1%lo]").unwrap().to_string();
        assert_eq!(lo, "roce://[fe80::1%1]:4791");
        assert_eq!(
            node_address("[fe80::1%1]:1").unwrap().to_string(),
            "[fe80::1%1]:1"
        );
        let alone = node_address("roce+tcp://[fe80::1]:1").unwrap_err();
        assert!(
            alone.ends_with("name the interface too, as in [fe80::1%eth0]"),
            "{alone}"
        );
        let unknown = node_address("roce://[fe80::1%none]").unwrap_err();
        assert!(unknown.contains("fe80::1%none"), "{unknown}");
    }

    #[test]
    fn everything_after_the_program_is_the_programs() {
        let line = [
            "legato", "run", "--cache", "64MiB", "--", "sort", "--quiet", "-S", "1G",
        ];
        let arguments = run_arguments(&line);
        assert_eq!(arguments.cache, Bytes::mib(64));
        assert!(!arguments.quiet);
        assert_eq!(arguments.command, ["sort", "--quiet", "-S", "1G"]);
        let without_dashes = run_arguments(&["legato", "run", "-q", "ls", "--cache", "x"]);
        assert!(without_dashes.quiet);
        assert_eq!(without_dashes.command, ["ls", "--cache", "x"]);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for line in [
            &["legato", "run", "--cache", "big", "--", "ls"][..],
            &["legato", "run", "--nodes", "tcp:a", "--", "ls"],
            &[
                "legato", "run", "--nodes", "shm:@a", "--far", "1GiB", "--", "ls",
            ],
            &["legato", "run"],
            &["legato", "sim"],
            &["legato", "sim", "--seed", "1", "--scenario", "happiness"],
            &["legato", "sim", "--seed", "1", "--seeds", "0"],
            &["legato", "sim", "--seed", "1", "--list"],
            &[
                "legato",
                "sim",
                "--scenario",
                "weather",
                "--personality",
                "mlx4",
            ],
            &["legato", "run", "--nodes", "verbs://rxe0/1", "--", "ls"],
            &["legato", "node", "status", "--node", "verbs://rxe0/1"],
            &["legato", "node", "--memory", "1GiB"],
            &["legato", "node", "--listen", "shm:@a"],
            &[
                "legato", "node", "--memory", "1GiB", "status", "--node", "shm:@a",
            ],
        ] {
            let error = Arguments::try_parse_from(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn a_node_serves_or_is_asked() {
        let parse = |line: &[&str]| match Arguments::try_parse_from(line).unwrap().command {
            Command::Node(arguments) => arguments,
            other => panic!("{other:?}"),
        };
        let serves = parse(&["legato", "node", "--memory", "1GiB", "--listen", "shm:@a"]);
        assert_eq!(serves.memory, Some(Bytes::gib(1)));
        assert!(serves.command.is_none());
        let asked = parse(&["legato", "node", "status", "--node", "shm:@a", "--json"]);
        assert!(matches!(asked.command, Some(NodeCommand::Status(status)) if status.json));
    }

    #[test]
    fn rdma_devices_are_addresses() {
        let line = ["legato", "run", "--nodes", "verbs://192.0.2.1", "--", "ls"];
        let verbs = run_arguments(&line).nodes.remove(0);
        assert_eq!(verbs.to_string(), "verbs://192.0.2.1:4791");
        let line = [
            "legato",
            "node",
            "--memory",
            "1GiB",
            "--listen",
            "verbs://rxe0/1",
        ];
        let parsed = Arguments::try_parse_from(line).unwrap().command;
        let Command::Node(node) = parsed else {
            panic!("{parsed:?}");
        };
        assert_eq!(node.listen[0].to_string(), "verbs://rxe0/1:4791");
    }

    #[test]
    fn nodes_are_a_list_without_doubles() {
        let arguments = run_arguments(&["legato", "run", "--nodes", "shm:@a,shm:/b", "--", "ls"]);
        assert_eq!(arguments.nodes.len(), 2);
        assert_eq!(arguments.check(), Ok(()));
        let doubled = run_arguments(&["legato", "run", "--nodes", "shm:@a,shm:@a", "--", "ls"]);
        assert!(doubled.check().is_err());
        let many: Vec<_> = (0..17).map(|n| format!("shm:@{n}")).collect();
        let many = run_arguments(&["legato", "run", "--nodes", &many.join(","), "--", "ls"]);
        assert!(many.check().is_err());
    }
}
