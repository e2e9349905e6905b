//! The two libraries, loaded when they are first needed, so that a machine without them only lacks RDMA.

use super::abi::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, GidEntry, Mr, Pd, PortAttr, Qp,
    QpAttr, QpInitAttr, RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, SocketAddress, Srq,
    SrqAttr, SrqInitAttr,
};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::string::{String, ToString as _};

/// Why the libraries cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error(
        "{} cannot be loaded ({reason}): install rdma-core (apt install libibverbs1 \
         ibverbs-providers librdmacm1)", .library.display()
    )]
    Library { library: PathBuf, reason: String },
    #[error(
        "{} has no {symbol}: it is older than rdma-core 32, or another library of that name",
        .library.display()
    )]
    Symbol {
        library: PathBuf,
        symbol: &'static str,
    },
}

/// `RTLD_NOW` and `RTLD_LOCAL` of dlopen(3).
const NOW_AND_LOCAL: c_int = 2;

// The C library's own, which a program with the standard library is linked with.
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// A loaded library. It stays loaded as long as the process runs: it may have threads and exit handlers.
struct Loaded {
    path: PathBuf,
    handle: *mut c_void,
}

impl Loaded {
    fn open(path: &Path) -> Result<Self, LoadError> {
        let refused = |reason| LoadError::Library {
            library: path.to_path_buf(),
            reason,
        };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| refused("its name has a zero byte".to_string()))?;
        // SAFETY: the name ends with a zero. What the library does when it is loaded is what the
        // machine's owner has installed it for, or a test its stand-in.
        let handle = unsafe { dlopen(name.as_ptr(), NOW_AND_LOCAL) };
        if handle.is_null() {
            return Err(refused(last_error()));
        }
        Ok(Self {
            path: path.to_path_buf(),
            handle,
        })
    }

    fn symbol(
        &self,
        name: &'static str,
        terminated: &'static CStr,
    ) -> Result<*mut c_void, LoadError> {
        // SAFETY: the handle is of a loaded library, the name ends with a zero.
        let found = unsafe { dlsym(self.handle, terminated.as_ptr()) };
        if found.is_null() {
            return Err(LoadError::Symbol {
                library: self.path.clone(),
                symbol: name,
            });
        }
        Ok(found)
    }
}

/// What dlopen(3) says about its last failure in this thread.
fn last_error() -> String {
    // SAFETY: a string that lives until the next call of this thread, or null.
    let text = unsafe { dlerror() };
    if text.is_null() {
        return "no reason given".to_string();
    }
    // SAFETY: see above; it ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

macro_rules! functions {
    ($($library:literal { $($(#[$doc:meta])* $name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// Every function of the two libraries that is called, by its name there.
        #[derive(Clone, Copy, Debug)]
        pub struct Functions {
            $($($(#[$doc])* pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Functions {
            fn resolve(ibverbs: &Loaded, rdmacm: &Loaded) -> Result<Self, LoadError> {
                let library = |name| if name == "ibverbs" { ibverbs } else { rdmacm };
                Ok(Self {
                    $($($name: {
                        const TERMINATED: &CStr =
                            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => panic!("a name without its zero"),
                            };
                        let found = library($library).symbol(stringify!($name), TERMINATED)?;
                        // SAFETY: the library's function of that name has this signature, by the
                        // header of every version that has its soname.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*)*
                })
            }
        }

        /// Library (`ibverbs` or `rdmacm`) and name of every function that is loaded.
        pub const SYMBOLS: &[(&str, &str)] = &[$($(($library, stringify!($name)),)*)*];
    };
}

functions! {
    "ibverbs" {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
        ibv_free_device_list: fn(*mut *mut Device);
        ibv_get_device_name: fn(*mut Device) -> *const c_char;
        ibv_open_device: fn(*mut Device) -> *mut Context;
        ibv_close_device: fn(*mut Context) -> c_int;
        ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
        ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
        /// Since rdma-core 32; the last two are flags, 0, and the size of the entry.
        _ibv_query_gid_ex: fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
        ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
        ibv_dealloc_pd: fn(*mut Pd) -> c_int;
        ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        ibv_dereg_mr: fn(*mut Mr) -> c_int;
        ibv_create_comp_channel: fn(*mut Context) -> *mut CompChannel;
        ibv_destroy_comp_channel: fn(*mut CompChannel) -> c_int;
        ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        ibv_resize_cq: fn(*mut Cq, c_int) -> c_int;
        ibv_destroy_cq: fn(*mut Cq) -> c_int;
        ibv_get_cq_event: fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut Cq, c_uint);
        ibv_create_srq: fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
        ibv_modify_srq: fn(*mut Srq, *mut SrqAttr, c_int) -> c_int;
        ibv_query_srq: fn(*mut Srq, *mut SrqAttr) -> c_int;
        ibv_destroy_srq: fn(*mut Srq) -> c_int;
        ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
        ibv_query_qp: fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
        ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
        ibv_destroy_qp: fn(*mut Qp) -> c_int;
        ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
        ibv_ack_async_event: fn(*mut AsyncEvent);
    }
    "rdmacm" {
        rdma_create_event_channel: fn() -> *mut RdmaEventChannel;
        rdma_destroy_event_channel: fn(*mut RdmaEventChannel);
        rdma_create_id: fn(*mut RdmaEventChannel, *mut *mut RdmaCmId, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id: fn(*mut RdmaCmId) -> c_int;
        rdma_set_option: fn(*mut RdmaCmId, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_bind_addr: fn(*mut RdmaCmId, *mut SocketAddress) -> c_int;
        rdma_resolve_addr: fn(*mut RdmaCmId, *mut SocketAddress, *mut SocketAddress, c_int) -> c_int;
        rdma_resolve_route: fn(*mut RdmaCmId, c_int) -> c_int;
        rdma_connect: fn(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        /// Since rdma-core 23.
        rdma_establish: fn(*mut RdmaCmId) -> c_int;
        rdma_listen: fn(*mut RdmaCmId, c_int) -> c_int;
        rdma_accept: fn(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        rdma_reject: fn(*mut RdmaCmId, *const c_void, u8) -> c_int;
        /// The second is an `enum ibv_event_type`.
        rdma_notify: fn(*mut RdmaCmId, c_uint) -> c_int;
        rdma_disconnect: fn(*mut RdmaCmId) -> c_int;
        rdma_get_cm_event: fn(*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int;
        rdma_ack_cm_event: fn(*mut RdmaCmEvent) -> c_int;
        rdma_init_qp_attr: fn(*mut RdmaCmId, *mut QpAttr, *mut c_int) -> c_int;
    }
}

/// The loaded libraries.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    pub(super) functions: Functions,
}

impl Library {
    /// The machine's, by their sonames.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn open() -> Result<Self, LoadError> {
        Self::open_at(Path::new("libibverbs.so.1"), Path::new("librdmacm.so.1"))
    }

    /// Libraries at other places, such as a stand-in of a test, which may be one file for both.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn open_at(ibverbs: &Path, rdmacm: &Path) -> Result<Self, LoadError> {
        let ibverbs = Loaded::open(ibverbs)?;
        let rdmacm = Loaded::open(rdmacm)?;
        let functions = Functions::resolve(&ibverbs, &rdmacm)?;
        Ok(Self { functions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let missing = Path::new("/nowhere/libibverbs.so.1");
        let error = Library::open_at(missing, missing).unwrap_err();
        let LoadError::Library { library, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(library, missing);
        assert!(error.to_string().contains("apt install"), "{error}");
    }

    #[test]
    fn a_library_without_a_symbol_is_named_with_it() {
        // The C library is a library, and not the one.
        let other = Path::new("libc.so.6");
        let error = Library::open_at(other, other).unwrap_err();
        let symbol = SYMBOLS.first().map(|&(_, name)| name);
        assert_eq!(
            error,
            LoadError::Symbol {
                library: other.to_path_buf(),
                symbol: symbol.unwrap_or_default(),
            }
        );
    }
}
