//! Objects that the library makes, up to the last field that is used here, and what they are made with.

use super::{LayoutRow, RecvWr, SendWr, Wc, rows};
use alloc::vec::Vec;
use core::ffi::{c_int, c_uint, c_void};
use core::marker::{PhantomData, PhantomPinned};

/// `struct ibv_device`, of which only the library reads anything.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    opaque: [u8; 0],
    pinned: PhantomData<(*mut u8, PhantomPinned)>,
}

/// A slot of the table of operations that is not called through.
type Unused = Option<unsafe extern "C" fn() -> *mut c_void>;

/// `struct ibv_context_ops`: operations that the header's inline functions call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ContextOps {
    unused_head: [Unused; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_uint) -> *mut Mw>,
    /// Windows of type 1, which are not used.
    pub bind_mw: Option<unsafe extern "C" fn(*mut Qp, *mut Mw, *mut c_void) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    unused_create_cq: Unused,
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    unused_middle: [Unused; 7],
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    unused_queue_pairs: [Unused; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    unused_tail: [Unused; 5],
}

/// `struct ibv_context`: an opened device.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// `struct ibv_pd`.
#[repr(C)]
#[derive(Debug)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
#[derive(Debug)]
pub struct Mw {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub rkey: u32,
    pub handle: u32,
    /// 1 or 2.
    pub kind: c_uint,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
#[derive(Debug)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut CompChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    /// Entries, at least as many as were asked for.
    pub cqe: c_int,
}

/// `struct ibv_srq`.
#[repr(C)]
#[derive(Debug)]
pub struct Srq {
    pub context: *mut Context,
    pub srq_context: *mut c_void,
    pub pd: *mut Pd,
    pub handle: u32,
}

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub attr: SrqAttr,
}

/// `struct ibv_qp`.
#[repr(C)]
#[derive(Debug)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    /// [`Self::RELIABLE_CONNECTION`].
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

impl QpInitAttr {
    /// `IBV_QPT_RC`.
    pub const RELIABLE_CONNECTION: c_uint = 2;
}

impl Mw {
    /// `IBV_MW_TYPE_2`.
    pub const TYPE_2: c_uint = 2;
}

pub(super) fn layouts(rows: &mut Vec<LayoutRow>) {
    rows!(rows, ContextOps, "struct ibv_context_ops" whole {
        alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv
    });
    rows!(rows, Context, "struct ibv_context" {
        device, ops, cmd_fd, async_fd, num_comp_vectors
    });
    rows!(rows, Pd, "struct ibv_pd" { context, handle });
    rows!(rows, Mr, "struct ibv_mr" { context, pd, addr, length, handle, lkey, rkey });
    rows!(rows, Mw, "struct ibv_mw" { context, pd, rkey, handle, kind as "type" });
    rows!(rows, CompChannel, "struct ibv_comp_channel" { context, fd, refcnt });
    rows!(rows, Cq, "struct ibv_cq" { context, channel, cq_context, handle, cqe });
    rows!(rows, Srq, "struct ibv_srq" { context, srq_context, pd, handle });
    rows!(rows, SrqAttr, "struct ibv_srq_attr" whole { max_wr, max_sge, srq_limit });
    rows!(rows, SrqInitAttr, "struct ibv_srq_init_attr" whole { srq_context, attr });
    rows!(rows, Qp, "struct ibv_qp" {
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type
    });
    rows!(rows, QpCap, "struct ibv_qp_cap" whole {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    });
    rows!(rows, QpInitAttr, "struct ibv_qp_init_attr" whole {
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
    });
}
