//! Objects of the library that are destroyed once, each before what it stands on.
//!
//! A destruction that fails (EBUSY, EIO) leaves an object. If nobody names it any more it is kept and tried
//! again, and given up with the device.

use super::abi::{CompChannel, Context, Cq, Mr, Mw, Pd, Qp, RdmaCmId, RdmaEventChannel, Srq};
use super::library::Functions;
use super::presence::Presence;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use legato_verbs::VerbsError;
use std::sync::{Mutex, PoisonError};

/// `errno` after a call of this thread that failed.
pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Of a function that returned null, or -1.
pub(super) fn refused(call: &'static str) -> VerbsError {
    VerbsError::System {
        call,
        errno: errno(),
    }
}

/// Of a function that returns 0, an `errno`, or -1 beside one: `libibverbs` has both kinds.
pub(super) fn check(call: &'static str, status: c_int) -> Result<(), VerbsError> {
    match status {
        0 => Ok(()),
        -1 => Err(refused(call)),
        status => Err(VerbsError::System {
            call,
            errno: status.abs(),
        }),
    }
}

/// What a provider's objects stand on: an opened device and a channel of connection management.
pub(super) struct Base {
    pub(super) functions: Functions,
    pub(super) context: NonNull<Context>,
    /// Of all completion queues.
    pub(super) completions: NonNull<CompChannel>,
    pub(super) connections: NonNull<RdmaEventChannel>,
    presence: Presence,
    /// Objects whose destruction failed, in the order in which they can be destroyed.
    graveyard: Mutex<Vec<Buried>>,
    failures: AtomicU64,
}

// SAFETY: the library's objects belong to the process; its functions may be called by any thread, and
// none of these is called by two at a time, for only the provider's methods call them.
unsafe impl Send for Base {}
// SAFETY: as above; the graveyard is behind a lock.
unsafe impl Sync for Base {}

impl Base {
    pub(super) const fn new(
        functions: Functions,
        context: NonNull<Context>,
        completions: NonNull<CompChannel>,
        connections: NonNull<RdmaEventChannel>,
        presence: Presence,
    ) -> Self {
        Self {
            functions,
            context,
            completions,
            connections,
            presence,
            graveyard: Mutex::new(Vec::new()),
            failures: AtomicU64::new(0),
        }
    }

    /// Tries again what could not be destroyed; returns how many remain.
    pub(super) fn retry_destructions(&self) -> usize {
        let mut graveyard = self.lock();
        graveyard.retain(|buried| buried.destroy(self).is_err());
        graveyard.len()
    }

    pub(super) fn undestroyed(&self) -> usize {
        self.lock().len()
    }

    /// Destructions that failed the first time.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Buried>> {
        // Whoever panicked while it held the lock had only moved entries.
        self.graveyard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Base")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        self.retry_destructions();
        let functions = &self.functions;
        // SAFETY: nothing stands on these any more but what could not be destroyed; if they refuse
        // for its sake, they end with the process.
        unsafe {
            (functions.rdma_destroy_event_channel)(self.connections.as_ptr());
            let _ = (functions.ibv_destroy_comp_channel)(self.completions.as_ptr());
            let _ = (functions.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// A kind of object.
pub(super) trait Kind {
    /// The function that destroys it, for errors.
    const DESTROYED_BY: &'static str;

    /// # Safety
    /// The object must be alive, with no event of it unacknowledged, and not be used afterwards if
    /// the result is 0.
    unsafe fn destroy(functions: &Functions, object: *mut Self) -> c_int;
}

macro_rules! kinds {
    ($($kind:ty: $function:ident,)*) => {
        $(impl Kind for $kind {
            const DESTROYED_BY: &'static str = stringify!($function);

            unsafe fn destroy(functions: &Functions, object: *mut Self) -> c_int {
                // SAFETY: as demanded of the caller.
                unsafe { (functions.$function)(object) }
            }
        })*
    };
}

kinds! {
    Pd: ibv_dealloc_pd,
    Mr: ibv_dereg_mr,
    Cq: ibv_destroy_cq,
    Srq: ibv_destroy_srq,
    Qp: ibv_destroy_qp,
    RdmaCmId: rdma_destroy_id,
}

impl Kind for Mw {
    const DESTROYED_BY: &'static str = "ibv_dealloc_mw";

    unsafe fn destroy(_functions: &Functions, object: *mut Self) -> c_int {
        // SAFETY: the window is alive, by the caller's promise, and so is its device.
        match unsafe { (*(*object).context).ops.dealloc_mw } {
            // SAFETY: as demanded of the caller.
            Some(dealloc) => unsafe { dealloc(object) },
            // A device that has made a window can end one.
            None => 0,
        }
    }
}

/// An object that ends with this.
pub(super) struct Owned<T: Kind> {
    object: NonNull<T>,
    base: Arc<Base>,
    /// It is destroyed, or somebody else's to destroy.
    has_ended: bool,
}

// SAFETY: see `Base`.
unsafe impl<T: Kind> Send for Owned<T> {}
// SAFETY: see `Base`; a shared reference gives nothing but the pointer.
unsafe impl<T: Kind> Sync for Owned<T> {}

impl<T: Kind> Owned<T> {
    /// Takes over what a function has just made; null is its refusal.
    ///
    /// # Safety
    /// The object must be the caller's alone, and of the base's device and channel.
    pub(super) unsafe fn adopt(
        base: &Arc<Base>,
        object: *mut T,
        made_by: &'static str,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            object: NonNull::new(object).ok_or_else(|| refused(made_by))?,
            base: Arc::clone(base),
            has_ended: false,
        })
    }

    /// Alive until [`Self::destroy`] has succeeded.
    pub(super) const fn as_ptr(&self) -> *mut T {
        self.object.as_ptr()
    }

    /// Destroys it now.
    ///
    /// # Errors
    /// The system's. Then it is tried again later.
    pub(super) fn end(mut self) -> Result<(), VerbsError> {
        self.bury()
    }

    /// Destroys it now. Nothing but dropping may follow then.
    ///
    /// # Errors
    /// The system's. It is still there then.
    pub(super) fn destroy(&mut self) -> Result<(), VerbsError> {
        if !self.has_ended {
            self.buried().destroy(&self.base)?;
            self.has_ended = true;
        }
        Ok(())
    }

    fn bury(&mut self) -> Result<(), VerbsError> {
        let result = self.destroy();
        if result.is_err() {
            self.has_ended = true;
            self.base.failures.fetch_add(1, Ordering::Relaxed);
            self.base.lock().push(self.buried());
        }
        result
    }

    fn buried(&self) -> Buried {
        Buried {
            object: self.object.cast(),
            destroy: |functions, object| {
                // SAFETY: it is alive, and has one owner: this, or the graveyard. Events are acknowledged as
                // soon as they are there.
                let status = unsafe { T::destroy(functions, object.cast::<T>().as_ptr()) };
                check(T::DESTROYED_BY, status)
            },
        }
    }
}

impl<T: Kind> Drop for Owned<T> {
    fn drop(&mut self) {
        // The failure is counted, and tried again.
        let _ = self.bury();
    }
}

impl<T: Kind> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.object)
    }
}

/// An object that nobody names any more.
struct Buried {
    object: NonNull<c_void>,
    destroy: fn(&Functions, NonNull<c_void>) -> Result<(), VerbsError>,
}

// SAFETY: see `Base`.
unsafe impl Send for Buried {}

impl Buried {
    /// What a device had that is gone has ended with it, though the library does not say so.
    fn destroy(&self, base: &Base) -> Result<(), VerbsError> {
        let result = (self.destroy)(&base.functions, self.object);
        match result {
            Err(_) if base.presence.is_gone() => Ok(()),
            result => result,
        }
    }
}
