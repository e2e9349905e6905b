//! Opening a device: which one an address is of, and where it is in connection management's terms.

use super::abi::{
    DeviceAttr, Gid, PortAttr, RdmaCmId, SocketAddress, capability, link_layer, port_state, wc_flag,
};
use super::devices::{GidKind, PortGid, open_context, port_gids};
use super::identifier::create_id;
use super::library::{Functions, Library};
use super::objects::{Base, check, refused};
use super::opening::{OpenError, Opening};
use super::presence::Presence;
use super::{IbverbsProvider, Regions, Windows};
use crate::table::Table;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use core::ffi::CStr;
use core::net::{IpAddr, SocketAddr};
use core::ptr::NonNull;
use legato_verbs::{Address, VerbsError, VerbsPort};
use rustix::fd::BorrowedFd;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// What was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    pub device: String,
    pub port: u8,
    /// By which peers reach it.
    pub ip: IpAddr,
}

/// The opened port.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) opened: Opened,
    pub(super) gid: Gid,
    gid_kind: GidKind,
    /// Where the GID was when it was looked for last.
    pub(super) gid_index: u8,
    pub(super) is_infiniband: bool,
    pub(super) attributes: DeviceAttr,
    /// Bytes.
    pub(super) message_length_max: u32,
    /// The flag of completions that say which key has ended.
    pub(super) with_invalidate: u32,
}

/// Bytes of a message: 64 MiB, which keep a port of 100 Gbit/s from others for 5 ms.
const MESSAGE_LENGTH_MAX: u32 = 64 << 20;
/// Of the kernel's software RoCE, which gives a completion's flags to programs with the kernel's numbers: there
/// 4 is "with invalidate" (`IB_WC_WITH_INVALIDATE`), and for programs a checksum's of other transports.
const RXE_VENDOR_ID: u32 = 0x00FF_FFFF;
const RXE_WITH_INVALIDATE: u32 = 1 << 2;
/// Entries of a request, more than any user asks for.
pub(super) const ENTRIES_MAX: u32 = 16;

impl Device {
    /// Is this the GID by which peers know this side?
    pub(super) fn is_own(&self, entry: &PortGid) -> bool {
        entry.gid == self.gid && entry.kind == self.gid_kind
    }

    pub(super) fn entries_max(&self) -> u32 {
        positive(self.attributes.max_sge).min(ENTRIES_MAX)
    }

    pub(super) const fn has_windows(&self) -> bool {
        let kinds = capability::MEMORY_WINDOW_TYPE_2A | capability::MEMORY_WINDOW_TYPE_2B;
        self.attributes.device_cap_flags & kinds != 0
    }
}

/// What the library says as a signed number.
pub(super) fn positive(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Non-blocking, so that a look for events never waits.
fn unblock(fd: i32) -> Result<(), VerbsError> {
    let failed = |errno: Errno| VerbsError::System {
        call: "fcntl",
        errno: errno.raw_os_error(),
    };
    // SAFETY: of an object of the library that the caller has.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl_getfl(fd).map_err(failed)?;
    fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(failed)
}

impl IbverbsProvider {
    /// The device that has the IP address of `verbs://IP:PORT`, or the named one of `verbs://DEVICE/PORT`.
    /// Nothing listens yet.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(address: &Address) -> Result<Self, OpenError> {
        Self::open_with(&Library::open()?, address)
    }

    /// As [`Self::open`], through libraries that are loaded already.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(library: &Library, address: &Address) -> Result<Self, OpenError> {
        let functions = library.functions;
        match address {
            Address::Verbs(place) if place.ip().is_unspecified() || place.ip().is_multicast() => {
                Err(OpenError::UnsupportedAddress)
            }
            Address::Verbs(place) => {
                let (name, port) = device_of(&functions, place.ip())?;
                Self::open_port(functions, &name, port, Some(place.ip()))
            }
            Address::VerbsPort(VerbsPort { device, port, .. }) => {
                Self::open_port(functions, device, *port, None)
            }
            _ => Err(OpenError::UnsupportedAddress),
        }
    }

    /// The device from which the system reaches `peer`.
    ///
    /// # Errors
    /// [`OpenError`]; [`VerbsError::System`] if there is no route.
    pub fn open_towards(peer: &Address) -> Result<Self, OpenError> {
        match peer {
            Address::Verbs(place) => {
                let source = crate::roce::source_towards(*place)?;
                Self::open(&Address::Verbs(source))
            }
            other => Self::open(other),
        }
    }

    /// What was opened.
    pub const fn opened(&self) -> &Opened {
        &self.device.opened
    }

    fn open_port(
        functions: Functions,
        name: &str,
        port: u8,
        ip: Option<IpAddr>,
    ) -> Result<Self, OpenError> {
        let context = open_context(&functions, name)?;
        let mut opening = Opening::new(functions, context);
        let device = describe(&functions, &opening, name, port, ip)?;
        // SAFETY: the context is open.
        let completions = unsafe { (functions.ibv_create_comp_channel)(context.as_ptr()) };
        let completions =
            NonNull::new(completions).ok_or_else(|| refused("ibv_create_comp_channel"))?;
        opening.completions = Some(completions);
        // SAFETY: no arguments.
        let connections = unsafe { (functions.rdma_create_event_channel)() };
        let connections =
            NonNull::new(connections).ok_or_else(|| refused("rdma_create_event_channel"))?;
        opening.connections = Some(connections);
        // SAFETY: just made.
        let descriptors = unsafe {
            [
                context.as_ref().async_fd,
                completions.as_ref().fd,
                connections.as_ref().fd,
            ]
        };
        for fd in descriptors {
            unblock(fd)?;
        }
        // From here on it is the base that ends them.
        core::mem::forget(opening);
        let presence = Presence::of_device(name);
        let base = Base::new(functions, context, completions, connections, presence);
        Ok(Self::on(Arc::new(base), device))
    }

    fn on(base: Arc<Base>, device: Device) -> Self {
        Self {
            device,
            events: VecDeque::new(),
            domains: Table::new(),
            regions: Regions::default(),
            windows: Windows::default(),
            queues: Table::new(),
            shared: Table::new(),
            queue_pairs: Table::new(),
            numbers: BTreeMap::new(),
            listeners: Table::new(),
            requests: Table::new(),
            owners: BTreeMap::new(),
            remains: BTreeMap::new(),
            serial: 0,
            is_fatal: false,
            address_is_missing: false,
            counters: super::Counters::default(),
            timers_at: None,
            retry_at: None,
            base,
        }
    }
}

/// Which port of which device an IP address of this machine is of.
fn device_of(functions: &Functions, ip: IpAddr) -> Result<(String, u8), OpenError> {
    // SAFETY: no arguments.
    let channel = unsafe { (functions.rdma_create_event_channel)() };
    let Some(channel) = NonNull::new(channel) else {
        return Err(match refused("rdma_create_event_channel") {
            VerbsError::System { errno, .. } if is_denied(errno) => OpenError::PermissionDenied {
                device: ip.to_string(),
            },
            other => other.into(),
        });
    };
    let found = create_id(functions, channel.as_ptr())
        .map_err(OpenError::from)
        .and_then(|id| {
            let found = bound_device(functions, id.as_ptr(), ip);
            // SAFETY: just made; it has no events. It is alive until here, and so is its device.
            let ended = unsafe { (functions.rdma_destroy_id)(id.as_ptr()) };
            check("rdma_destroy_id", ended)?;
            found
        });
    // SAFETY: its only identifier is gone.
    unsafe { (functions.rdma_destroy_event_channel)(channel.as_ptr()) };
    found
}

fn is_denied(errno: i32) -> bool {
    [Errno::ACCESS, Errno::PERM]
        .map(Errno::raw_os_error)
        .contains(&errno)
}

fn bound_device(
    functions: &Functions,
    id: *mut RdmaCmId,
    ip: IpAddr,
) -> Result<(String, u8), OpenError> {
    let mut address = SocketAddress::from(SocketAddr::new(ip, 0));
    // SAFETY: the identifier is alive, and the address is copied.
    let bound = unsafe { (functions.rdma_bind_addr)(id, &raw mut address) };
    if let Err(error) = check("rdma_bind_addr", bound) {
        let nobodys = [Errno::ADDRNOTAVAIL, Errno::NODEV].map(Errno::raw_os_error);
        return Err(match error {
            VerbsError::System { errno, .. } if nobodys.contains(&errno) => {
                OpenError::NoDeviceAt(ip)
            }
            other => other.into(),
        });
    }
    device_name(functions, id)
        .map(|name| {
            // SAFETY: alive.
            (name, unsafe { (*id).port_num })
        })
        .ok_or(OpenError::NoDeviceAt(ip))
}

/// The device that an identifier is bound to.
pub(super) fn device_name(functions: &Functions, id: *mut RdmaCmId) -> Option<String> {
    // SAFETY: the identifier is alive, by the callers; a device that it has is open.
    unsafe {
        let verbs = NonNull::new((*id).verbs)?;
        let name = (functions.ibv_get_device_name)(verbs.as_ref().device);
        if name.is_null() {
            return None;
        }
        Some(CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// `ibv_query_port(3)`, or that there is no such port.
pub(super) fn query_port(
    functions: &Functions,
    context: *mut super::abi::Context,
    port: u8,
) -> Result<PortAttr, VerbsError> {
    // SAFETY: of numbers only, for which zeros are values.
    let mut attributes: PortAttr = unsafe { core::mem::zeroed() };
    // SAFETY: the context is open, and the structure has room for all that any version fills.
    let queried = unsafe { (functions.ibv_query_port)(context, port, &raw mut attributes) };
    check("ibv_query_port", queried)?;
    Ok(attributes)
}

fn describe(
    functions: &Functions,
    opening: &Opening,
    name: &str,
    port: u8,
    ip: Option<IpAddr>,
) -> Result<Device, OpenError> {
    let context = opening.context.as_ptr();
    // SAFETY: of numbers only, for which zeros are values.
    let mut attributes: DeviceAttr = unsafe { core::mem::zeroed() };
    // SAFETY: the context is open.
    let queried = unsafe { (functions.ibv_query_device)(context, &raw mut attributes) };
    check("ibv_query_device", queried)?;
    let device = || name.to_string();
    if port == 0 || port > attributes.phys_port_cnt {
        return Err(OpenError::NoSuchPort {
            device: device(),
            port,
        });
    }
    let state = query_port(functions, context, port)?;
    if state.state != port_state::ACTIVE {
        return Err(OpenError::PortDown {
            device: device(),
            port,
            state: super::devices::PortState::from_number(state.state).name(),
        });
    }
    let gids = port_gids(functions, context, port, &state)?;
    // RoCE v2 first, and IPv4 before IPv6, of which the first are link-local.
    let wanted = |gid: &&PortGid| gid.kind != GidKind::RoceV1;
    let rank = |gid: &&PortGid| gid.ip.is_none_or(|ip| ip.is_ipv6());
    let chosen = match ip {
        Some(ip) => gids.iter().filter(wanted).find(|gid| gid.ip == Some(ip)),
        None => gids.iter().filter(wanted).min_by_key(rank),
    };
    let none = OpenError::NoIpAddress {
        device: device(),
        port,
    };
    let is_infiniband = state.link_layer == link_layer::INFINIBAND;
    // An InfiniBand port's GIDs are no IP addresses: those are its network interface's.
    let chosen = chosen.or_else(|| gids.first().filter(|_| is_infiniband));
    let Some((chosen, ip)) = chosen.and_then(|gid| Some((gid, ip.or(gid.ip)?))) else {
        return Err(none);
    };
    Ok(Device {
        opened: Opened {
            device: device(),
            port,
            ip,
        },
        gid: chosen.gid,
        gid_kind: chosen.kind,
        // Of a table of at most 256 entries, as `ibv_ah_attr` has it.
        gid_index: u8::try_from(chosen.index).unwrap_or(u8::MAX),
        is_infiniband,
        attributes,
        with_invalidate: match attributes.vendor_id {
            RXE_VENDOR_ID => wc_flag::WITH_INV | RXE_WITH_INVALIDATE,
            _ => wc_flag::WITH_INV,
        },
        message_length_max: state.max_msg_sz.min(MESSAGE_LENGTH_MAX),
    })
}
