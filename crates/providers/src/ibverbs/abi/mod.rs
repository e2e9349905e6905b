//! The binary interface of `libibverbs.so.1` and `librdmacm.so.1`, by hand: structures whose layout the
//! libraries keep (rdma-core 17 and later; `infiniband/verbs.h`, `rdma/rdma_cma.h`), with the names
//! of their headers in the rows of [`layouts`], which a test compares with the headers.
//!
//! Objects that the library makes have more fields behind those here: they are only ever used
//! through pointers that the library returned.

mod cm;
mod objects;
mod requests;
mod values;

pub use cm::{
    RdmaAddr, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, RdmaRoute, SocketAddress,
    cm_event, option,
};
pub use objects::{
    CompChannel, Context, ContextOps, Cq, Device, Mr, Mw, Pd, Qp, QpCap, QpInitAttr, Srq, SrqAttr,
    SrqInitAttr,
};
pub use requests::{
    AtomicTarget, BindMw, MwBindInfo, OperationTarget, RdmaTarget, RecvWr, SendWr, Sge, Wc, opcode,
    send_flag, wc_flag, wc_opcode,
};
pub use values::{
    AhAttr, AsyncElement, AsyncEvent, DeviceAttr, Gid, GidEntry, GlobalRoute, PortAttr, QpAttr,
    attr_mask, capability, gid_type, link_layer, port_state, qp_state, srq_mask,
};

/// A field of a structure of the headers: the structure, the field, its offset and its size in
/// bytes. A row without a field has the size of the whole structure.
pub type LayoutRow = (&'static str, &'static str, usize, usize);

/// Size of the field that `field` takes a pointer to.
pub(crate) const fn size_of_pointee<S, F>(_field: fn(*const S) -> *const F) -> usize {
    size_of::<F>()
}

/// The rows of a structure: its name in the header, then its fields, those of the header first where
/// they have other names here.
macro_rules! rows {
    ($rows:ident, $type:ty, $name:literal whole { $($field:ident $(as $c_field:literal)?),* $(,)? }) => {
        rows!($rows, $type, $name { $($field $(as $c_field)?),* });
        $rows.push(($name, "", 0, size_of::<$type>()));
    };
    ($rows:ident, $type:ty, $name:literal { $($field:ident $(as $c_field:literal)?),* $(,)? }) => {
        $($rows.push((
            $name,
            rows!(@name $field $($c_field)?),
            core::mem::offset_of!($type, $field),
            $crate::ibverbs::abi::size_of_pointee(|it: *const $type| {
                // SAFETY: never called, and it would only add an offset.
                unsafe { &raw const (*it).$field }
            }),
        ));)*
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $c_field:literal) => { $c_field };
}
use rows;

/// Every field that this provider reads or writes, and the sizes of the structures that it makes itself.
#[doc(hidden)]
pub fn layouts() -> alloc::vec::Vec<LayoutRow> {
    let mut rows = alloc::vec::Vec::new();
    values::layouts(&mut rows);
    objects::layouts(&mut rows);
    requests::layouts(&mut rows);
    cm::layouts(&mut rows);
    rows
}
