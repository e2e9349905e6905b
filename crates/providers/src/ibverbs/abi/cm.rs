//! Connection management: `rdma/rdma_cma.h`.

use super::{Context, Gid, LayoutRow, Qp, rows};
use alloc::vec::Vec;
use core::ffi::{c_int, c_uint, c_void};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use zerocopy::IntoBytes as _;

/// `struct sockaddr_storage`: of IPv4 or IPv6.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct SocketAddress {
    family: u16,
    /// The port in network byte order, then what the family has.
    rest: [u8; 126],
}

/// `AF_INET` and `AF_INET6` of Linux.
const INET: u16 = 2;
const INET6: u16 = 10;

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> Self {
        let mut rest = [0; 126];
        let (port, behind) = rest.split_at_mut(2);
        let [high, low] = [(address.port() >> 8) as u8, address.port() as u8];
        port.copy_from_slice(&[high, low]);
        let family = match address {
            SocketAddr::V4(it) => {
                behind[..4].copy_from_slice(&it.ip().octets());
                INET
            }
            SocketAddr::V6(it) => {
                // The flow information is 0.
                behind[4..20].copy_from_slice(&it.ip().octets());
                // Of this machine's byte order, as the interface's number is.
                behind[20..24].copy_from_slice(it.scope_id().as_bytes());
                INET6
            }
        };
        Self { family, rest }
    }
}

impl SocketAddress {
    /// None if it is of another family.
    pub fn get(&self) -> Option<SocketAddr> {
        let (port, behind) = self.rest.split_at(2);
        let port = u16::from(port[0]) << 8 | u16::from(port[1]);
        match self.family {
            INET => {
                let octets: [u8; 4] = behind[..4].try_into().ok()?;
                Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), port))
            }
            INET6 => {
                let octets: [u8; 16] = behind[4..20].try_into().ok()?;
                Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, 0).into())
            }
            _ => None,
        }
    }
}

/// `struct rdma_addr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RdmaAddr {
    pub src_addr: SocketAddress,
    pub dst_addr: SocketAddress,
    pub sgid: Gid,
    pub dgid: Gid,
    pub pkey: u16,
}

/// `struct rdma_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RdmaRoute {
    pub addr: RdmaAddr,
    pub path_rec: *mut c_void,
    pub num_paths: c_int,
}

/// `struct rdma_event_channel`.
#[repr(C)]
#[derive(Debug)]
pub struct RdmaEventChannel {
    pub fd: c_int,
}

/// `struct rdma_cm_id`, as far as it is used.
#[repr(C)]
#[derive(Debug)]
pub struct RdmaCmId {
    /// The library's own opening of the device, null as long as there is no device.
    pub verbs: *mut Context,
    pub channel: *mut RdmaEventChannel,
    pub context: *mut c_void,
    pub qp: *mut Qp,
    pub route: RdmaRoute,
    pub ps: c_uint,
    pub port_num: u8,
}

impl RdmaCmId {
    /// `RDMA_PS_TCP`: reliable connections, with the IP addresses in front of the private data.
    pub const PORT_SPACE_TCP: c_uint = 0x0106;
}

/// `struct rdma_conn_param`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RdmaConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// `struct rdma_cm_event`. Its last field is a union whose other part is for datagrams.
#[repr(C)]
#[derive(Debug)]
pub struct RdmaCmEvent {
    pub id: *mut RdmaCmId,
    pub listen_id: *mut RdmaCmId,
    /// [`cm_event`].
    pub event: c_uint,
    /// A negative errno, or the reason of a rejection.
    pub status: c_int,
    pub conn: RdmaConnParam,
}

/// `enum rdma_cm_event_type`.
pub mod cm_event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const ROUTE_ERROR: u32 = 3;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const CONNECT_ERROR: u32 = 6;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const DEVICE_REMOVAL: u32 = 11;
    pub const ADDR_CHANGE: u32 = 14;
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// `RDMA_OPTION_*`.
pub mod option {
    use core::ffi::c_int;

    pub const LEVEL_ID: c_int = 0;
    /// An `int`: other identifiers may be bound to the same address.
    pub const ID_REUSEADDR: c_int = 1;
}

pub(super) fn layouts(rows: &mut Vec<LayoutRow>) {
    rows!(rows, SocketAddress, "struct sockaddr_storage" whole { family as "ss_family" });
    rows!(rows, RdmaAddr, "struct rdma_addr" whole {
        src_addr as "src_storage", dst_addr as "dst_storage", sgid as "addr.ibaddr.sgid",
        dgid as "addr.ibaddr.dgid", pkey as "addr.ibaddr.pkey"
    });
    rows!(rows, RdmaRoute, "struct rdma_route" whole { addr, path_rec, num_paths });
    rows!(rows, RdmaEventChannel, "struct rdma_event_channel" whole { fd });
    rows!(rows, RdmaCmId, "struct rdma_cm_id" {
        verbs, channel, context, qp, route, ps, port_num
    });
    rows!(rows, RdmaConnParam, "struct rdma_conn_param" whole {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control,
        retry_count, rnr_retry_count, srq, qp_num
    });
    rows!(rows, RdmaCmEvent, "struct rdma_cm_event" {
        id, listen_id, event, status, conn as "param.conn"
    });
}
