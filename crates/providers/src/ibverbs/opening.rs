//! A device that is being opened, and why it could not be.

use super::abi::{CompChannel, Context, RdmaEventChannel};
use super::library::{Functions, LoadError};
use alloc::string::String;
use core::net::IpAddr;
use core::ptr::NonNull;
use legato_verbs::VerbsError;

/// Why a device could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("no RDMA device has the address {0}: `legato net devices` lists those of this machine")]
    NoDeviceAt(IpAddr),
    #[error("there is no RDMA device {0}: `legato net devices` lists those of this machine")]
    NoSuchDevice(String),
    #[error("{device} has no port {port}")]
    NoSuchPort { device: String, port: u8 },
    #[error("port {port} of {device} is {state}: bring its network interface up")]
    PortDown {
        device: String,
        port: u8,
        state: &'static str,
    },
    #[error(
        "port {port} of {device} has no IP address among its GIDs: give its network interface one"
    )]
    NoIpAddress { device: String, port: u8 },
    #[error(
        "no right to use {device}: /dev/infiniband/uverbs* and /dev/infiniband/rdma_cm must be \
         readable and writable"
    )]
    PermissionDenied { device: String },
    #[error("an address of another provider, or a wildcard, which is of no device")]
    UnsupportedAddress,
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl From<OpenError> for VerbsError {
    /// Without the names, which a `VerbsError` has no room for.
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Load(_) => Self::Unsupported(
                "RDMA libraries: install libibverbs1, ibverbs-providers and librdmacm1",
            ),
            OpenError::NoDeviceAt(_)
            | OpenError::NoSuchDevice(_)
            | OpenError::NoSuchPort { .. } => {
                Self::Unsupported("RDMA device at that address: see `legato net devices`")
            }
            OpenError::PortDown { .. } => {
                Self::Unsupported("RDMA port that is up there: see `legato net devices`")
            }
            OpenError::NoIpAddress { .. } => {
                Self::Unsupported("IP address at that RDMA port: see `legato net devices`")
            }
            OpenError::PermissionDenied { .. } => Self::PermissionDenied,
            OpenError::UnsupportedAddress => Self::UnsupportedAddress,
            OpenError::Verbs(error) => error,
        }
    }
}

/// What is open already, closed again if the rest cannot be opened.
pub(super) struct Opening {
    functions: Functions,
    pub(super) context: NonNull<Context>,
    pub(super) completions: Option<NonNull<CompChannel>>,
    pub(super) connections: Option<NonNull<RdmaEventChannel>>,
}

impl Opening {
    pub(super) const fn new(functions: Functions, context: NonNull<Context>) -> Self {
        Self {
            functions,
            context,
            completions: None,
            connections: None,
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        // SAFETY: alive, ours, and nothing stands on them yet. What refuses to end ends with the process.
        unsafe {
            if let Some(connections) = self.connections {
                (self.functions.rdma_destroy_event_channel)(connections.as_ptr());
            }
            if let Some(completions) = self.completions {
                let _ = (self.functions.ibv_destroy_comp_channel)(completions.as_ptr());
            }
            let _ = (self.functions.ibv_close_device)(self.context.as_ptr());
        }
    }
}
