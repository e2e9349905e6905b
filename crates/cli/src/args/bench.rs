//! Arguments of `legato bench`.

use super::{SecretArguments, node_address, peer_address};
use clap::{Args, Subcommand, ValueEnum};
use legato_base::Bytes;
use legato_verbs::Address;
use std::ffi::OsString;
use std::path::PathBuf;

/// Measure, and compare in the same run.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Contract(BenchContractArguments),
    Fault(BenchFaultArguments),
    Program(BenchProgramArguments),
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
/// does not swap already. What is touched are all combinations of --times, --order, --access and
/// --threads.
#[derive(Debug, Args)]
pub(crate) struct BenchFaultArguments {
    /// Local memory: Legato's cache, and the limit of the cgroup under swap.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) cache: Bytes,
    /// How often each workload is run by each.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// How much memory is touched, in caches.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [2, 4],
          value_parser = clap::value_parser!(u64).range(2..=64))]
    pub(crate) times: Vec<u64>,
    /// In which order.
    #[arg(long, value_name = "ORDER,...", value_delimiter = ',', default_values = ["random", "seq"])]
    pub(crate) order: Vec<TouchOrder>,
    /// What is done with a page.
    #[arg(long, value_name = "ACCESS,...", value_delimiter = ',', default_values = ["read"])]
    pub(crate) access: Vec<TouchAccess>,
    /// By how many threads, each with its own part of the memory.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1],
          value_parser = clap::value_parser!(u32).range(1..=TOUCH_THREADS_MAX))]
    pub(crate) threads: Vec<u32>,
    /// How often each run touches the memory. In the first pass pages leave for the first time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) passes: u32,
    /// How often each run touches it before that, without being timed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) settle: u32,
    #[command(flatten)]
    pub(crate) against: BenchAgainstArguments,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A program's time under Legato, under Linux swap with the same limit, and on local memory.
///
/// Before it is measured the program runs twice: on local memory, where what it prints is kept, and under
/// Legato with all of its memory local, which says how much it takes. Then it runs everywhere in turn, and
/// has to print the same each time. The swap areas are made for that and removed after it, which needs root
/// and a machine that does not swap already. What the program keeps local is its anonymous memory; what the
/// cgroup counts against its limit is that and its page tables, as files that it reads are in memory by then.
#[derive(Debug, Args)]
pub(crate) struct BenchProgramArguments {
    /// Local memory: Legato's cache, and the limit of the cgroup under swap.
    #[arg(long, value_name = "SIZE", conflicts_with = "local")]
    pub(crate) cache: Option<Bytes>,
    /// The same as a part of what the program takes.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) local: u32,
    /// How often the program is run by each.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// How long one run may take, in seconds; who takes longer is left out from then on.
    #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) time_limit: u32,
    /// Measure also where the program prints something else than before, as times and addresses are.
    #[arg(long)]
    pub(crate) any_output: bool,
    /// Use these memory nodes, as with `legato run` [default: two on this machine].
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', value_parser = peer_address)]
    pub(crate) nodes: Vec<Address>,
    #[command(flatten)]
    pub(crate) secret: SecretArguments,
    #[command(flatten)]
    pub(crate) against: BenchAgainstArguments,
    /// As JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments. It reads nothing from standard input.
    #[arg(
        value_name = "PROG",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<OsString>,
}

/// What Legato is compared with.
#[derive(Debug, Args)]
pub(crate) struct BenchAgainstArguments {
    /// Another legato that takes its turns, to compare two versions.
    #[arg(long, value_name = "LEGATO")]
    pub(crate) other: Option<PathBuf>,
    /// The Linux swap to compare with.
    #[arg(long, value_name = "KIND,...", value_delimiter = ',', default_values = ["zram", "file"])]
    pub(crate) swap: Vec<SwapKind>,
    /// Linux swaps in 2^N pages at once (vm.page-cluster).
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=9))]
    pub(crate) page_cluster: u32,
}

/// Of one toucher; more would measure the scheduler.
const TOUCH_THREADS_MAX: i64 = 64;

#[derive(Debug, Args)]
pub(crate) struct BenchTouchArguments {
    #[arg(long)]
    pub(crate) bytes: Bytes,
    #[arg(long)]
    pub(crate) order: TouchOrder,
    #[arg(long, default_value = "read")]
    pub(crate) access: TouchAccess,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=TOUCH_THREADS_MAX))]
    pub(crate) threads: u32,
    #[arg(long, default_value_t = 1)]
    pub(crate) passes: u32,
}

/// What Linux swaps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwapKind {
    /// A compressed memory device.
    Zram,
    /// A file on a disk.
    File,
    /// Nothing: neither root nor a machine without swap is needed for the comparison then.
    None,
}

/// In which order pages are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TouchOrder {
    /// Of addresses.
    Seq,
    /// Shuffled anew in each pass.
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

/// What is done with a page that is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TouchAccess {
    /// A word of it is compared.
    Read,
    /// A word of it is compared and changed.
    Write,
}

impl TouchAccess {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
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

/// Calls and reads between two fabrics in this process, over shared memory: what they cost in this
/// build. `scripts/contract-cost` compares it with one that checks and fences nothing.
#[derive(Debug, Args)]
pub(crate) struct BenchContractArguments {
    /// Calls, and as many reads.
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
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
