//! Work requests and completions.

use super::{LayoutRow, Mr, Mw, rows};
use alloc::vec::Vec;
use core::ffi::{c_int, c_uint};

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_mw_bind_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MwBindInfo {
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// `ibv_send_wr.wr.rdma`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RdmaTarget {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// `ibv_send_wr.wr.atomic`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AtomicTarget {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// `ibv_send_wr.wr`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(
    missing_debug_implementations,
    reason = "which of its fields is the one only its user knows"
)]
pub union OperationTarget {
    pub rdma: RdmaTarget,
    pub atomic: AtomicTarget,
}

/// `ibv_send_wr.bind_mw`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BindMw {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub bind_info: MwBindInfo,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    /// [`opcode`].
    pub opcode: c_uint,
    /// [`send_flag`].
    pub send_flags: c_uint,
    /// Immediate data in network byte order, or the key to end.
    pub immediate_or_key: u32,
    pub wr: OperationTarget,
    /// Of extended reliable connections only.
    pub remote_srqn: u32,
    pub bind_mw: BindMw,
}

impl core::fmt::Debug for SendWr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SendWr")
            .field("wr_id", &self.wr_id)
            .field("opcode", &self.opcode)
            .finish_non_exhaustive()
    }
}

/// `enum ibv_wr_opcode`.
pub mod opcode {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
}

/// `enum ibv_send_flags`, which `legato_verbs::SendFlags` numbers alike but for the bits.
pub mod send_flag {
    pub const FENCE: u32 = 1 << 0;
    pub const SIGNALED: u32 = 1 << 1;
    pub const SOLICITED: u32 = 1 << 2;
    pub const INLINE: u32 = 1 << 3;
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut Self,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// `struct ibv_wc`. On failure only `wr_id`, `status`, `qp_num` and `vendor_err` mean anything.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data in network byte order, or the key that has ended.
    pub immediate_or_key: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    /// [`wc_flag`].
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `enum ibv_wc_opcode`, as far as it says more than the request does.
pub mod wc_opcode {
    pub const RECV_RDMA_WITH_IMM: u32 = 129;
}

/// `enum ibv_wc_flags`.
pub mod wc_flag {
    pub const WITH_IMM: u32 = 1 << 1;
    pub const WITH_INV: u32 = 1 << 3;
}

pub(super) fn layouts(rows: &mut Vec<LayoutRow>) {
    rows!(rows, Sge, "struct ibv_sge" whole { addr, length, lkey });
    rows!(rows, MwBindInfo, "struct ibv_mw_bind_info" whole { mr, addr, length, mw_access_flags });
    rows!(rows, SendWr, "struct ibv_send_wr" whole {
        wr_id, next, sg_list, num_sge, opcode, send_flags, immediate_or_key as "imm_data", wr,
        remote_srqn as "qp_type", bind_mw
    });
    // Members of unnamed structures, by their path from the request.
    for (path, offset, size) in [
        (
            "wr.rdma.remote_addr",
            core::mem::offset_of!(RdmaTarget, remote_addr),
            8,
        ),
        ("wr.rdma.rkey", core::mem::offset_of!(RdmaTarget, rkey), 4),
        (
            "wr.atomic.remote_addr",
            core::mem::offset_of!(AtomicTarget, remote_addr),
            8,
        ),
        (
            "wr.atomic.compare_add",
            core::mem::offset_of!(AtomicTarget, compare_add),
            8,
        ),
        (
            "wr.atomic.swap",
            core::mem::offset_of!(AtomicTarget, swap),
            8,
        ),
        (
            "wr.atomic.rkey",
            core::mem::offset_of!(AtomicTarget, rkey),
            4,
        ),
    ] {
        let start = core::mem::offset_of!(SendWr, wr);
        rows.push(("struct ibv_send_wr", path, start + offset, size));
    }
    for (path, offset, size) in [
        (
            "bind_mw.mw",
            core::mem::offset_of!(BindMw, mw),
            size_of::<*mut Mw>(),
        ),
        ("bind_mw.rkey", core::mem::offset_of!(BindMw, rkey), 4),
        (
            "bind_mw.bind_info",
            core::mem::offset_of!(BindMw, bind_info),
            size_of::<MwBindInfo>(),
        ),
    ] {
        let start = core::mem::offset_of!(SendWr, bind_mw);
        rows.push(("struct ibv_send_wr", path, start + offset, size));
    }
    rows!(rows, RecvWr, "struct ibv_recv_wr" whole { wr_id, next, sg_list, num_sge });
    rows!(rows, Wc, "struct ibv_wc" whole {
        wr_id, status, opcode, vendor_err, byte_len, immediate_or_key as "imm_data", qp_num,
        src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits
    });
}
