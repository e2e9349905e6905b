//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use legato_base::Bytes;
use legato_base::wire::control::{ADDRESS_SIZE, NODES_MAX};
use legato_verbs::Address;
use std::ffi::OsString;
use std::path::PathBuf;

/// What of a program's memory stays local if nothing is said.
const CACHE_DEFAULT: &str = "1GiB";

/// Far memory for unmodified Linux programs.
#[derive(Debug, Parser)]
#[command(name = "legato", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArguments),
    Node(NodeArguments),
    Sim(SimArguments),
    #[command(subcommand)]
    Bench(BenchCommand),
}

const RUN_AFTER_HELP: &str = "\
Exit status:
  the program's own, or 128+N if signal N ended it;
  2    nothing was started: wrong arguments, missing rights, a memory node that refuses,
       a program that cannot run on far memory;
  126  the program is not executable;
  127  the program was not found.

Signals: those of the terminal reach the program directly. SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1
and SIGUSR2 that a process sends to legato are passed on to the program.";

/// Run a program whose memory may exceed its local cache.
///
/// At most --cache of the anonymous memory of each process stays in local RAM; the rest lives at
/// memory nodes. Without --nodes, two memory nodes run on this machine as long as the program.
#[derive(Debug, Args)]
#[command(after_help = RUN_AFTER_HELP)]
pub(crate) struct RunArguments {
    /// Local memory of each process, such as 64MiB.
    #[arg(long, value_name = "SIZE", default_value = CACHE_DEFAULT)]
    pub(crate) cache: Bytes,
    /// Memory of the memory nodes that this command starts, all of them together [default: half
    /// of what the machine has available].
    #[arg(long, value_name = "SIZE", conflicts_with = "nodes")]
    pub(crate) memory: Option<Bytes>,
    /// Use these memory nodes and start none, such as shm:@node-a,shm:/run/legato/b.sock.
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', value_parser = node_address)]
    pub(crate) nodes: Vec<Address>,
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

/// Serve memory to programs, until SIGINT or SIGTERM.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct NodeArguments {
    #[command(subcommand)]
    pub(crate) command: Option<NodeCommand>,
    /// How much memory to serve, such as 4GiB.
    #[arg(long, value_name = "SIZE", required = true)]
    pub(crate) memory: Option<Bytes>,
    /// Where to listen: shm:/path/to/socket, or shm:@name for one that no file system shows.
    #[arg(long, value_name = "ADDR", required = true, value_parser = node_address)]
    pub(crate) listen: Option<Address>,
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
    #[arg(long, value_name = "ADDR", value_parser = node_address)]
    pub(crate) node: Address,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Run one simulated world, in virtual time: a random program on far memory, every page checked.
///
/// A seed and a number of steps name one history, whose hash is printed.
#[derive(Debug, Args)]
pub(crate) struct SimArguments {
    /// Which world.
    #[arg(long, value_name = "N")]
    pub(crate) seed: u64,
    /// Operations of the simulated program.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) steps: u64,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure, and compare in the same run.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Fault(BenchFaultArguments),
    Read(BenchReadArguments),
    /// The program whose memory is more than is local.
    #[command(hide = true)]
    Touch(BenchTouchArguments),
    /// The process whose memory is read.
    #[command(hide = true)]
    ReadTarget(BenchTargetArguments),
}

/// Touching more memory than is local, under Legato and under Linux swap with the same limit: on
/// zram, and in a file.
///
/// The swap areas are made for the run and removed after it, which needs root and a machine that
/// does not swap already.
#[derive(Debug, Args)]
pub(crate) struct BenchFaultArguments {
    /// Local memory: Legato's cache, and the limit of the cgroup under swap.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) cache: Bytes,
    /// How often each workload is run by each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Linux swaps in 2^N pages at once (vm.page-cluster).
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=9))]
    pub(crate) page_cluster: u32,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchTouchArguments {
    #[arg(long)]
    pub(crate) bytes: Bytes,
    #[arg(long)]
    pub(crate) order: TouchOrder,
    #[arg(long, default_value_t = 1)]
    pub(crate) rounds: u32,
}

/// In which order pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TouchOrder {
    /// Of addresses.
    Seq,
    /// Shuffled anew in each round.
    Random,
}

impl TouchOrder {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Seq => "seq",
            Self::Random => "random",
        }
    }
}

/// An RDMA READ from a memory node, from post to completion, against a plain copy out of the
/// same memory.
#[derive(Debug, Args)]
pub(crate) struct BenchReadArguments {
    /// Bytes of one read.
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub(crate) size: Bytes,
    /// Reads, and as many copies.
    #[arg(long, value_name = "N", default_value_t = 400_000,
          value_parser = clap::value_parser!(u32).range(8_000..))]
    pub(crate) count: u32,
    /// The memory that is read, at random places.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) memory: Bytes,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchTargetArguments {
    #[arg(long)]
    pub(crate) memory: Bytes,
    #[arg(long, value_parser = node_address)]
    pub(crate) listen: Address,
}

impl RunArguments {
    /// What the parser cannot say about one argument alone.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.nodes.len() > NODES_MAX {
            return Err(format!(
                "{} memory nodes were given, a program can use {NODES_MAX}",
                self.nodes.len()
            ));
        }
        let mut seen = Vec::new();
        for node in &self.nodes {
            if seen.contains(&node) {
                return Err(format!("memory node {node} was given twice"));
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
    text.parse().map_err(|error| format!("{error}"))
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
                "legato", "run", "--nodes", "shm:@a", "--memory", "1GiB", "--", "ls",
            ],
            &["legato", "run"],
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
