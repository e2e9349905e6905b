//! Swap areas that exist for one comparison: on a compressed memory device and in a file.
//!
//! mkswap, swapon and swapoff do what they are made for; nothing here writes a swap header.

use super::group::GroupError;
use crate::failure::by_name;
use crate::machine;
use crate::output::tell;
use legato_base::Bytes;
use rustix::fs::{FallocateFlags, fallocate, statfs};
use std::fs;
use std::io::Error as IoError;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// Where files outlive a boot, so that it is a disk (hier(7)).
const FILE_DIRECTORY: &str = "/var/tmp";
/// statfs(2): file systems in memory.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58F6];

/// Why there is no comparison with one of them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SwapError {
    #[error("left out as asked")]
    LeftOut,
    #[error("only root can set up swap")]
    NotRoot,
    #[error("this machine swaps already, and its swap is left alone")]
    InUse,
    #[error("the kernel has no zram (zram-control is missing)")]
    NoZram,
    #[error("{FILE_DIRECTORY} is in memory, not on a disk")]
    NoDisk,
    #[error("{tool} failed: {status}")]
    Tool {
        tool: &'static str,
        status: ExitStatus,
    },
    #[error("{}: {}", .path.display(), by_name(cause))]
    System { path: PathBuf, cause: IoError },
    #[error("{0}")]
    Group(#[from] GroupError),
}

/// Refuses machines whose swap would be measured, or disturbed, instead.
pub(crate) fn check_machine() -> Result<(), SwapError> {
    if !rustix::process::geteuid().is_root() {
        return Err(SwapError::NotRoot);
    }
    let swaps = read(Path::new("/proc/swaps"))?;
    // The first line is a heading.
    if swaps.lines().count() > 1 {
        return Err(SwapError::InUse);
    }
    Ok(())
}

/// How many pages, as a power of two, Linux reads at once when it swaps in; put back on drop.
#[derive(Debug)]
pub(crate) struct PageCluster {
    before: String,
}

impl PageCluster {
    pub(crate) fn set(exponent: u32) -> Result<Self, SwapError> {
        let path = Path::new(PAGE_CLUSTER);
        let before = read(path)?;
        write(path, &exponent.to_string())?;
        Ok(Self { before })
    }
}

impl Drop for PageCluster {
    fn drop(&mut self) {
        undo(write(Path::new(PAGE_CLUSTER), self.before.trim()));
    }
}

/// A formatted swap area that is not active.
#[derive(Debug)]
pub(crate) struct SwapArea {
    path: PathBuf,
    /// What is undone when the area is dropped.
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    Zram(ZramDevice),
    File(SwapFile),
}

impl SwapArea {
    pub(crate) fn zram(size: Bytes) -> Result<Self, SwapError> {
        let device = ZramDevice::add()?;
        device.configure(size)?;
        let path = PathBuf::from(format!("/dev/zram{}", device.number));
        Self::format(path, Backing::Zram(device))
    }

    pub(crate) fn file(size: Bytes) -> Result<Self, SwapError> {
        let file = SwapFile::create(size)?;
        Self::format(file.path.clone(), Backing::File(file))
    }

    fn format(path: PathBuf, backing: Backing) -> Result<Self, SwapError> {
        tool("mkswap", &path)?;
        Ok(Self { path, backing })
    }

    /// Swaps to this area and no other until the result is dropped.
    pub(crate) fn activate(&self) -> Result<ActiveSwap<'_>, SwapError> {
        tool("swapon", &self.path)?;
        Ok(ActiveSwap(self))
    }

    /// For the report.
    pub(crate) fn describe(&self) -> String {
        match &self.backing {
            Backing::Zram(device) => format!("zram {}", device.algorithm()),
            Backing::File(file) => format!("file in {}", file.directory().display()),
        }
    }
}

/// A swap area in use.
#[derive(Debug)]
pub(crate) struct ActiveSwap<'a>(&'a SwapArea);

impl Drop for ActiveSwap<'_> {
    fn drop(&mut self) {
        undo(tool("swapoff", &self.0.path));
    }
}

/// A compressed memory device of our own, so that those of others need not be touched.
#[derive(Debug)]
struct ZramDevice {
    number: u32,
}

impl ZramDevice {
    fn add() -> Result<Self, SwapError> {
        if !Path::new(ZRAM_CONTROL).exists() {
            return Err(SwapError::NoZram);
        }
        // Reading makes a device and gives its number (Linux, admin-guide/blockdev/zram.rst).
        let path = Path::new(ZRAM_CONTROL).join("hot_add");
        let number = read(&path)?.trim().parse().map_err(|_| SwapError::NoZram)?;
        Ok(Self { number })
    }

    fn attribute(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{name}", self.number))
    }

    fn configure(&self, size: Bytes) -> Result<(), SwapError> {
        let algorithm = self.attribute("comp_algorithm");
        // Peers measure with lz4; a kernel without it keeps its own choice, which is printed.
        if read(&algorithm)?
            .split_whitespace()
            .any(|name| name == "lz4")
        {
            write(&algorithm, "lz4")?;
        }
        write(&self.attribute("disksize"), &size.0.to_string())
    }

    /// The one that the kernel has put in brackets.
    fn algorithm(&self) -> String {
        read(&self.attribute("comp_algorithm"))
            .ok()
            .and_then(|names| Some(names.split_once('[')?.1.split_once(']')?.0.to_owned()))
            .unwrap_or_default()
    }
}

impl Drop for ZramDevice {
    fn drop(&mut self) {
        undo(write(&self.attribute("reset"), "1"));
        let path = Path::new(ZRAM_CONTROL).join("hot_remove");
        undo(write(&path, &self.number.to_string()));
    }
}

#[derive(Debug)]
struct SwapFile {
    path: PathBuf,
}

impl SwapFile {
    fn create(size: Bytes) -> Result<Self, SwapError> {
        let directory = Path::new(FILE_DIRECTORY);
        let at = |path: &Path, cause: IoError| SwapError::System {
            path: path.into(),
            cause,
        };
        let kind = statfs(directory).map_err(|cause| at(directory, cause.into()))?;
        if MEMORY_FILE_SYSTEMS.contains(&(kind.f_type as u64)) {
            return Err(SwapError::NoDisk);
        }
        let name = machine::random_name().map_err(|cause| at(directory, cause))?;
        let path = directory.join(format!("legato-bench-{name}.swap"));
        // What is swapped out may be secret: nobody else may read it.
        let file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|cause| at(&path, cause))?;
        let created = Self { path };
        // swapon(8) refuses holes; blocks that were never written are none.
        fallocate(&file, FallocateFlags::empty(), 0, size.0)
            .map_err(|cause| at(&created.path, cause.into()))?;
        Ok(created)
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        undo(
            fs::remove_file(&self.path).map_err(|cause| SwapError::System {
                path: self.path.clone(),
                cause,
            }),
        );
    }
}

/// Not in this process's group: a user who interrupts must not interrupt swapoff.
fn tool(tool: &'static str, area: &Path) -> Result<(), SwapError> {
    // They lie in sbin, which PATH need not have.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let status = Command::new(tool)
        .env("PATH", path)
        .arg(area)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .status()
        .map_err(|cause| SwapError::System {
            path: tool.into(),
            cause,
        })?;
    if status.success() {
        Ok(())
    } else {
        Err(SwapError::Tool { tool, status })
    }
}

fn read(path: &Path) -> Result<String, SwapError> {
    fs::read_to_string(path).map_err(|cause| SwapError::System {
        path: path.into(),
        cause,
    })
}

fn write(path: &Path, value: &str) -> Result<(), SwapError> {
    fs::write(path, value).map_err(|cause| SwapError::System {
        path: path.into(),
        cause,
    })
}

/// What cannot be undone is said, and the rest is undone all the same.
fn undo(result: Result<(), SwapError>) {
    if let Err(error) = result {
        tell(format_args!("left behind: {error}; undo it by hand"));
    }
}
