//! The RDMA devices of this machine, and why one of them cannot be used.

use super::abi::{Context, Gid, GidEntry, PortAttr, gid_type, link_layer, port_state};
use super::device::{positive, query_port};
use super::library::{Functions, Library};
use super::objects::{check, errno, refused};
use super::opening::OpenError;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::ffi::{CStr, c_int};
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use core::ptr::NonNull;
use legato_base::SystemError;
use legato_verbs::{PathMtu, VerbsError};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePort {
    pub device: String,
    /// 0 for a device that could not be opened.
    pub port: u8,
    pub state: PortState,
    /// RoCE or iWARP, as opposed to InfiniBand.
    pub is_ethernet: bool,
    /// Payload bytes of a packet now.
    pub active_mtu: Option<PathMtu>,
    pub gids: Vec<PortGid>,
    /// Why it cannot be used now.
    pub unusable: Option<Unusable>,
}

/// An entry of a port's table of global identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortGid {
    pub index: u32,
    pub gid: Gid,
    pub kind: GidKind,
    /// That it stands for.
    pub ip: Option<IpAddr>,
}

/// What packets with an identifier are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    Infiniband,
    RoceV1,
    RoceV2,
}

/// `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    Unknown,
    Down,
    Initializing,
    Armed,
    Active,
}

impl PortState {
    pub(super) const fn from_number(number: u32) -> Self {
        match number {
            port_state::DOWN => Self::Down,
            port_state::INIT => Self::Initializing,
            port_state::ARMED => Self::Armed,
            port_state::ACTIVE => Self::Active,
            _ => Self::Unknown,
        }
    }

    /// As `rdma link` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "in no known state",
            Self::Down => "down",
            Self::Initializing => "initializing",
            Self::Armed => "armed",
            Self::Active => "active",
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a device or port cannot be used, in one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("the port is {0}: bring its network interface up")]
    PortNotActive(PortState),
    #[error("no GID is an IP address: give the network interface one")]
    NoGid,
    #[error("no right to open /dev/infiniband/uverbs* (it must be readable and writable)")]
    PermissionDenied,
    #[error("/dev/infiniband/uverbs* is missing: load the module ib_uverbs, or pass the device in")]
    NoDeviceNode,
    #[error(
        "only {limit_kib} KiB may be locked in memory (ulimit -l): raise RLIMIT_MEMLOCK, for what a \
         device may write is locked"
    )]
    MemoryLock { limit_kib: u64 },
    #[error("it could not be opened: {}", SystemError(*.0))]
    Open(i32),
    #[error("its state could not be read: {0}")]
    Query(VerbsError),
}

/// Why there is no list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DevicesError {
    #[error("no RDMA devices: {0}")]
    Load(#[from] super::LoadError),
    #[error(
        "no RDMA devices: the kernel has no ib_uverbs, or its device files are not there: {}",
        SystemError(*.0)
    )]
    List(i32),
}

/// Locked memory below which not even a small node's buffers can be registered, in KiB. What is
/// enough depends on the buffers; this much the memory of a first connection needs.
const MEMORY_LOCK_KIB_MIN: u64 = 64 << 10;

/// Every port of every device. None is no error.
///
/// # Errors
/// [`DevicesError`].
pub fn devices(library: &Library) -> Result<Vec<DevicePort>, DevicesError> {
    let functions = &library.functions;
    let list = List::get(functions).map_err(DevicesError::List)?;
    let mut ports = Vec::new();
    for (name, device) in list.iter() {
        // SAFETY: the list is alive.
        let context = unsafe { (functions.ibv_open_device)(device) };
        let Some(context) = NonNull::new(context) else {
            ports.push(unopened(name, errno()));
            continue;
        };
        let mut attributes: super::abi::DeviceAttr =
            // SAFETY: of numbers only, for which zeros are values.
            unsafe { core::mem::zeroed() };
        // SAFETY: the context is open.
        let queried =
            unsafe { (functions.ibv_query_device)(context.as_ptr(), &raw mut attributes) };
        match check("ibv_query_device", queried) {
            Ok(()) => ports.extend(
                (1..=attributes.phys_port_cnt)
                    .map(|port| port_of(functions, context, name.clone(), port)),
            ),
            Err(error) => ports.push(DevicePort {
                unusable: Some(Unusable::Query(error)),
                ..unopened(name, 0)
            }),
        }
        // SAFETY: nothing stands on it. What refuses to close ends with the process.
        let _ = unsafe { (functions.ibv_close_device)(context.as_ptr()) };
    }
    Ok(ports)
}

fn unopened(device: String, errno: i32) -> DevicePort {
    let is = |candidates: &[Errno]| candidates.iter().any(|it| it.raw_os_error() == errno);
    let unusable = if is(&[Errno::ACCESS, Errno::PERM]) {
        Unusable::PermissionDenied
    } else if is(&[Errno::NOENT, Errno::NODEV, Errno::NXIO]) {
        Unusable::NoDeviceNode
    } else {
        Unusable::Open(errno)
    };
    DevicePort {
        device,
        port: 0,
        state: PortState::Unknown,
        is_ethernet: false,
        active_mtu: None,
        gids: Vec::new(),
        unusable: Some(unusable),
    }
}

fn port_of(
    functions: &Functions,
    context: NonNull<Context>,
    device: String,
    port: u8,
) -> DevicePort {
    let queried = query_port(functions, context.as_ptr(), port).and_then(|attributes| {
        let gids = port_gids(functions, context.as_ptr(), port, &attributes)?;
        Ok((attributes, gids))
    });
    let (attributes, gids) = match queried {
        Ok(found) => found,
        Err(error) => {
            return DevicePort {
                port,
                unusable: Some(Unusable::Query(error)),
                ..unopened(device, 0)
            };
        }
    };
    let state = PortState::from_number(attributes.state);
    let is_ethernet = attributes.link_layer == link_layer::ETHERNET;
    let has_ip = gids
        .iter()
        .any(|gid| gid.ip.is_some() && gid.kind != GidKind::RoceV1);
    let unusable = if state != PortState::Active {
        Some(Unusable::PortNotActive(state))
    } else if is_ethernet && !has_ip {
        Some(Unusable::NoGid)
    } else {
        locked_memory_kib()
            .filter(|&limit_kib| limit_kib < MEMORY_LOCK_KIB_MIN && !may_lock_all())
            .map(|limit_kib| Unusable::MemoryLock { limit_kib })
    };
    DevicePort {
        device,
        port,
        state,
        is_ethernet,
        active_mtu: u8::try_from(attributes.active_mtu)
            .ok()
            .and_then(PathMtu::from_code),
        gids,
        unusable,
    }
}

/// A process with this right may lock what it likes (capabilities(7)). In a container the kernel may think otherwise,
/// which the registration itself then says.
fn may_lock_all() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

/// The limit of what this process may lock; None if there is none.
pub(super) fn locked_memory_kib() -> Option<u64> {
    getrlimit(Resource::Memlock)
        .current
        .map(|bytes| bytes >> 10)
}

/// The entries of a port's table that are in use.
pub(super) fn port_gids(
    functions: &Functions,
    context: *mut Context,
    port: u8,
    attributes: &PortAttr,
) -> Result<Vec<PortGid>, VerbsError> {
    let mut gids = Vec::new();
    // An entry's index has 8 bits where requests name it (`ibv_ah_attr`).
    for index in 0..positive(attributes.gid_tbl_len).min(256) {
        let mut entry = GidEntry::default();
        // SAFETY: the context is open, and the size is the entry's.
        let queried = unsafe {
            (functions._ibv_query_gid_ex)(
                context,
                u32::from(port),
                index,
                &raw mut entry,
                0,
                size_of::<GidEntry>(),
            )
        };
        match check("ibv_query_gid_ex", queried) {
            Ok(()) => {}
            // An empty entry.
            Err(VerbsError::System { errno, .. }) if errno == Errno::NODATA.raw_os_error() => {
                continue;
            }
            Err(error) => return Err(error),
        }
        if entry.gid == Gid::default() {
            continue;
        }
        let kind = match entry.gid_type {
            gid_type::ROCE_V2 => GidKind::RoceV2,
            gid_type::ROCE_V1 => GidKind::RoceV1,
            _ => GidKind::Infiniband,
        };
        gids.push(PortGid {
            index,
            gid: entry.gid,
            kind,
            ip: (kind != GidKind::Infiniband).then(|| ip_of(&entry.gid)),
        });
    }
    Ok(gids)
}

/// The IP address that a GID of RoCE is (annex A17.4.2).
fn ip_of(gid: &Gid) -> IpAddr {
    let address = Ipv6Addr::from(gid.raw);
    address
        .to_ipv4_mapped()
        .map_or(IpAddr::V6(address), IpAddr::V4)
}

/// The library's list of devices, freed on drop.
struct List<'a> {
    functions: &'a Functions,
    first: NonNull<*mut super::abi::Device>,
    length: usize,
}

impl<'a> List<'a> {
    /// The `errno` if there is none.
    fn get(functions: &'a Functions) -> Result<Self, i32> {
        let mut count: c_int = 0;
        // SAFETY: the count is written to.
        let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
        Ok(Self {
            functions,
            first: NonNull::new(list).ok_or_else(errno)?,
            length: positive(count) as usize,
        })
    }

    fn iter(&self) -> impl Iterator<Item = (String, *mut super::abi::Device)> {
        (0..self.length).filter_map(|place| {
            // SAFETY: inside of the list, which has so many devices; a name ends with a zero.
            unsafe {
                let device = *self.first.as_ptr().add(place);
                let name = (self.functions.ibv_get_device_name)(device);
                (!name.is_null())
                    .then(|| (CStr::from_ptr(name).to_string_lossy().into_owned(), device))
            }
        })
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: devices that were opened stay open.
        unsafe { (self.functions.ibv_free_device_list)(self.first.as_ptr()) };
    }
}

/// Opens a device by its name.
pub(super) fn open_context(
    functions: &Functions,
    name: &str,
) -> Result<NonNull<Context>, OpenError> {
    let list = List::get(functions).map_err(|errno| VerbsError::System {
        call: "ibv_get_device_list",
        errno,
    })?;
    let Some((_, device)) = list.iter().find(|(found, _)| found == name) else {
        return Err(OpenError::NoSuchDevice(name.to_string()));
    };
    // SAFETY: the list is alive.
    let context = unsafe { (functions.ibv_open_device)(device) };
    NonNull::new(context).ok_or_else(|| match refused("ibv_open_device") {
        VerbsError::System { errno, .. }
            if [Errno::ACCESS, Errno::PERM]
                .map(Errno::raw_os_error)
                .contains(&errno) =>
        {
            OpenError::PermissionDenied {
                device: name.to_string(),
            }
        }
        other => other.into(),
    })
}
