//! Memory windows of type 2B (IB spec 10.6.7).

use super::tags::Tags;
use super::{Accessor, KeyError, Keys, Object, TAG_BITS, may_grant, offset_in};
use legato_verbs::{AccessFlags, LocalKey, ProtectionDomain, QueuePair, RemoteKey};

/// What a window is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub region: LocalKey,
    pub address: u64,
    pub length: u64,
    /// What peers may do.
    pub access: AccessFlags,
}

#[derive(Clone, Debug)]
pub(super) struct Window {
    domain: ProtectionDomain,
    bound: Option<Bound>,
}

#[derive(Clone, Debug)]
pub(super) struct Bound {
    queue_pair: QueuePair,
    /// The slot of the region, which stays while the window is bound.
    pub(super) region: u32,
    address: u64,
    length: u64,
    access: AccessFlags,
}

impl Keys {
    /// A window that is not bound. Its key names it to its owner, and allows nothing.
    ///
    /// # Errors
    /// [`KeyError::TooMany`].
    pub fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, KeyError> {
        let bound = None;
        self.insert(Object::Window(Window { domain, bound }))
            .map(RemoteKey)
    }

    /// Ends a window, bound or not.
    ///
    /// # Errors
    /// [`KeyError::Unknown`].
    pub fn deallocate_window(&mut self, key: RemoteKey) -> Result<(), KeyError> {
        let slot = self.find(key.0)?;
        self.window(slot)?;
        self.unbind(slot);
        self.remove(slot);
        Ok(())
    }

    /// The only key that the window can be bound under next. It counts up the lower 8 bits, as
    /// `ibv_inc_rkey(3)` does, but for those that were issued already.
    ///
    /// # Errors
    /// [`KeyError::Unknown`]; [`KeyError::UsedUp`]: another window must be allocated.
    pub fn next_window_key(&self, key: RemoteKey) -> Result<RemoteKey, KeyError> {
        let slot = self.find(key.0)?;
        self.window(slot)?;
        let tags = self.slots.get(slot as usize).map(|slot| &slot.tags);
        let next = tags.and_then(Tags::next).ok_or(KeyError::UsedUp)?;
        let index = key.0 >> TAG_BITS << TAG_BITS;
        Ok(RemoteKey(index | u32::from(next)))
    }

    /// Binds a window to a part of a region, for the peer of one queue pair. From then on `next`
    /// names it.
    ///
    /// # Errors
    /// If window, queue pair and region do not belong together, the window is bound, or the region
    /// does not allow it; then nothing has changed.
    pub fn bind(
        &mut self,
        accessor: Accessor,
        key: RemoteKey,
        next: RemoteKey,
        binding: &Binding,
    ) -> Result<(), KeyError> {
        let number = self.find(key.0)?;
        let window = self.window(number)?;
        if window.domain != accessor.domain {
            return Err(KeyError::OtherDomain);
        }
        if window.bound.is_some() {
            return Err(KeyError::AlreadyBound);
        }
        if self.next_window_key(key)? != next {
            return Err(KeyError::NotNext);
        }
        let region = self.check_binding(accessor.domain, binding)?;
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.tags.issue(next.0 as u8);
            slot.object = Object::Window(Window {
                domain: accessor.domain,
                bound: Some(Bound {
                    queue_pair: accessor.queue_pair,
                    region,
                    address: binding.address,
                    length: binding.length,
                    access: binding.access,
                }),
            });
        }
        self.count_window(region, 1);
        Ok(())
    }

    /// Ends the binding of a window, by a request of the queue pair that it is bound for or of its
    /// peer. The key allows nothing any more, and its owner can bind the window again.
    ///
    /// # Errors
    /// [`KeyError::Unknown`] also for regions, which no request can end; [`KeyError::NotBound`],
    /// [`KeyError::OtherQueuePair`], [`KeyError::OtherDomain`].
    pub fn invalidate(&mut self, accessor: Accessor, key: RemoteKey) -> Result<(), KeyError> {
        let slot = self.find(key.0)?;
        self.window(slot)?.check(accessor, AccessFlags::NONE)?;
        self.unbind(slot);
        Ok(())
    }

    /// Ends the bindings for a queue pair that is destroyed or reset. Returns how many there were.
    pub fn unbind_queue_pair(&mut self, queue_pair: QueuePair) -> u32 {
        let mut unbound = 0;
        for number in (0..).take(self.slots.len()) {
            let is_its = matches!(
                self.object(number),
                Ok(Object::Window(Window { bound: Some(bound), .. }))
                    if bound.queue_pair == queue_pair
            );
            if is_its {
                self.unbind(number);
                unbound += 1;
            }
        }
        unbound
    }

    /// The slot of the region that a window can be bound to so.
    fn check_binding(&self, domain: ProtectionDomain, binding: &Binding) -> Result<u32, KeyError> {
        let slot = self.find(binding.region.0)?;
        let region = self.region_at(slot)?;
        if region.domain != domain {
            return Err(KeyError::OtherDomain);
        }
        if !region.windows {
            return Err(KeyError::NotAllowed);
        }
        if binding.length == 0 {
            return Err(KeyError::Empty);
        }
        region.place(binding.address, binding.length)?;
        if !may_grant(binding.access, region.access) {
            return Err(KeyError::NeedsLocalWrite);
        }
        Ok(slot)
    }

    fn window(&self, slot: u32) -> Result<&Window, KeyError> {
        match self.object(slot)? {
            Object::Window(window) => Ok(window),
            _ => Err(KeyError::Unknown),
        }
    }

    fn unbind(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(number as usize) else {
            return;
        };
        let Object::Window(window) = &mut slot.object else {
            return;
        };
        if let Some(bound) = window.bound.take() {
            self.count_window(bound.region, -1);
        }
    }

    fn count_window(&mut self, region: u32, change: i32) {
        let slot = self.slots.get_mut(region as usize);
        if let Some(Object::Region { windows, .. }) = slot.map(|slot| &mut slot.object) {
            *windows = windows.saturating_add_signed(change);
        }
    }
}

impl Window {
    /// The binding, if it is for this queue pair and allows this.
    pub(super) fn check(
        &self,
        accessor: Accessor,
        access: AccessFlags,
    ) -> Result<&Bound, KeyError> {
        let bound = self.bound.as_ref().ok_or(KeyError::NotBound)?;
        if bound.queue_pair != accessor.queue_pair {
            return Err(KeyError::OtherQueuePair);
        }
        if self.domain != accessor.domain {
            return Err(KeyError::OtherDomain);
        }
        if !bound.access.contains(access) {
            return Err(KeyError::NotAllowed);
        }
        Ok(bound)
    }
}

impl Bound {
    pub(super) fn check_range(&self, address: u64, length: u64) -> Result<(), KeyError> {
        offset_in(self.address, self.length, address, length).map(|_| ())
    }
}
