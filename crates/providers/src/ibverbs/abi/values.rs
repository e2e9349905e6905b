//! What devices, ports, queue pairs and asynchronous events are described by.

use super::{Cq, LayoutRow, Qp, QpCap, Srq, rows};
use alloc::vec::Vec;
use core::ffi::{c_int, c_uint};

/// `union ibv_gid`: for RoCE an IPv6 address, or an IPv4 address mapped into one.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid {
    pub raw: [u8; 16],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    /// [`gid_type`].
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `enum ibv_gid_type`.
pub mod gid_type {
    pub const INFINIBAND: u32 = 0;
    pub const ROCE_V1: u32 = 1;
    pub const ROCE_V2: u32 = 2;
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttr {
    pub fw_ver: [u8; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    /// [`capability`].
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `enum ibv_device_cap_flags`.
pub mod capability {
    pub const MEMORY_WINDOW_TYPE_2A: u32 = 1 << 23;
    pub const MEMORY_WINDOW_TYPE_2B: u32 = 1 << 24;
}

/// `struct ibv_port_attr`. The symbol `ibv_query_port` is an old one that fills everything up to
/// `flags`; today's inline function calls it where the device has no newer operation, after it has
/// zeroed the whole structure. What lies behind `flags` is not read here, so the symbol is enough
/// with every version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PortAttr {
    /// [`port_state`].
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    /// [`link_layer`].
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Room for what later versions append.
    pub reserved: [u32; 8],
}

/// `enum ibv_port_state`.
pub mod port_state {
    pub const DOWN: u32 = 1;
    pub const INIT: u32 = 2;
    pub const ARMED: u32 = 3;
    pub const ACTIVE: u32 = 4;
}

/// `IBV_LINK_LAYER_*`.
pub mod link_layer {
    pub const UNSPECIFIED: u8 = 0;
    pub const INFINIBAND: u8 = 1;
    pub const ETHERNET: u8 = 2;
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAttr {
    /// [`qp_state`].
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `enum ibv_qp_state`.
pub mod qp_state {
    pub const RESET: u32 = 0;
    pub const INIT: u32 = 1;
    pub const READY_TO_RECEIVE: u32 = 2;
    pub const READY_TO_SEND: u32 = 3;
    pub const SEND_QUEUE_DRAIN: u32 = 4;
    pub const SEND_QUEUE_ERROR: u32 = 5;
    pub const ERROR: u32 = 6;
}

/// `enum ibv_qp_attr_mask`.
pub mod attr_mask {
    use core::ffi::c_int;

    pub const STATE: c_int = 1 << 0;
    pub const CURRENT_STATE: c_int = 1 << 1;
    pub const DRAINED_EVENT: c_int = 1 << 2;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PARTITION_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const ADDRESS_VECTOR: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_COUNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RECEIVE_SEQUENCE: c_int = 1 << 12;
    pub const INITIATOR_DEPTH: c_int = 1 << 13;
    pub const RNR_TIMER: c_int = 1 << 15;
    pub const SEND_SEQUENCE: c_int = 1 << 16;
    pub const RESPONDER_RESOURCES: c_int = 1 << 17;
    pub const DESTINATION: c_int = 1 << 20;
    /// Bits that kernels put into a mask and `ibv_modify_qp(3)` does not know (21 to 24).
    pub const KERNEL_ONLY: c_int = 0xF << 21;
}

/// `enum ibv_srq_attr_mask`.
pub mod srq_mask {
    use core::ffi::c_int;

    pub const LIMIT: c_int = 1 << 1;
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AsyncEvent {
    pub element: AsyncElement,
    /// `enum ibv_event_type`, as [`legato_verbs::AsyncEvent::code`].
    pub event_type: c_uint,
}

/// What an event is about.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(
    missing_debug_implementations,
    reason = "which of its fields is the one only its user knows"
)]
pub union AsyncElement {
    pub cq: *mut Cq,
    pub qp: *mut Qp,
    pub srq: *mut Srq,
    pub port_num: c_int,
}

impl core::fmt::Debug for AsyncEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AsyncEvent")
            .field("event_type", &self.event_type)
            .finish_non_exhaustive()
    }
}

pub(super) fn layouts(rows: &mut Vec<LayoutRow>) {
    rows!(rows, Gid, "union ibv_gid" whole { raw });
    rows!(rows, GidEntry, "struct ibv_gid_entry" whole {
        gid, gid_index, port_num, gid_type, ndev_ifindex
    });
    rows!(rows, DeviceAttr, "struct ibv_device_attr" whole {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
        hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
        max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
        max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp,
        max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah,
        max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys,
        local_ca_ack_delay, phys_port_cnt
    });
    rows!(rows, PortAttr, "struct ibv_port_attr" {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
        qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
        init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
        port_cap_flags2
    });
    rows!(rows, GlobalRoute, "struct ibv_global_route" whole {
        dgid, flow_label, sgid_index, hop_limit, traffic_class
    });
    rows!(rows, AhAttr, "struct ibv_ah_attr" whole {
        grh, dlid, sl, src_path_bits, static_rate, is_global, port_num
    });
    rows!(rows, QpAttr, "struct ibv_qp_attr" whole {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
        qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
        en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
    });
    rows!(rows, AsyncEvent, "struct ibv_async_event" whole { element, event_type });
}
