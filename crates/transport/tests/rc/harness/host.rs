//! A host whose memory is vectors.

use legato_transport::congestion::Path;
use legato_transport::{AccessRefused, Host, QueueCompletion, QueuePairEvent};
use legato_verbs::{
    AccessFlags, ReceiveRequest, RemoteAddress, RemoteKey, ScatterGatherEntry, WindowBinding,
};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The address of each region's first byte.
pub(crate) const BASE: u64 = 0x10_0000;

#[derive(Default)]
pub(crate) struct TestHost {
    /// By key, which is the local and the remote one.
    pub(crate) regions: BTreeMap<u32, Region>,
    pub(crate) receives: VecDeque<ReceiveRequest>,
    pub(crate) completions: Vec<QueueCompletion>,
    pub(crate) events: Vec<QueuePairEvent>,
    pub(crate) path: Option<Path>,
}

pub(crate) struct Region {
    pub(crate) bytes: Vec<u8>,
    pub(crate) access: AccessFlags,
}

/// A key, a range in its region, and a range in the message.
type Piece = (u32, Range<usize>, Range<usize>);

impl TestHost {
    pub(crate) fn add(&mut self, key: u32, length: usize, access: AccessFlags) {
        let bytes = vec![0; length];
        self.regions.insert(key, Region { bytes, access });
    }

    pub(crate) fn bytes(&self, key: u32) -> &[u8] {
        &self.regions[&key].bytes
    }

    pub(crate) fn bytes_mut(&mut self, key: u32) -> &mut [u8] {
        &mut self.regions.get_mut(&key).unwrap().bytes
    }

    fn range(
        &self,
        key: u32,
        address: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Range<usize>, AccessRefused> {
        let region = self.regions.get(&key).ok_or(AccessRefused)?;
        let start = address.checked_sub(BASE).ok_or(AccessRefused)?;
        let start = usize::try_from(start).map_err(|_| AccessRefused)?;
        let end = start.checked_add(length).ok_or(AccessRefused)?;
        if !region.access.contains(access) || end > region.bytes.len() {
            return Err(AccessRefused);
        }
        Ok(start..end)
    }

    /// Where bytes of a message lie.
    fn pieces(
        &self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        length: usize,
        access: AccessFlags,
    ) -> Result<Vec<Piece>, AccessRefused> {
        let (mut skip, mut at, mut pieces) = (offset as usize, 0, Vec::new());
        for entry in entries {
            let here = (entry.length as usize)
                .saturating_sub(skip)
                .min(length - at);
            if here > 0 {
                let address = entry
                    .address
                    .checked_add(skip as u64)
                    .ok_or(AccessRefused)?;
                let range = self.range(entry.local_key.0, address, here, access)?;
                pieces.push((entry.local_key.0, range, at..at + here));
                at += here;
            }
            skip = skip.saturating_sub(entry.length as usize);
        }
        assert_eq!(at, length, "the engine stays within the entries");
        Ok(pieces)
    }
}

impl Host for TestHost {
    fn path(&mut self) -> Option<&mut Path> {
        self.path.as_mut()
    }

    fn check_entries(
        &self,
        entries: &[ScatterGatherEntry],
        access: AccessFlags,
    ) -> Result<(), AccessRefused> {
        for entry in entries {
            self.range(
                entry.local_key.0,
                entry.address,
                entry.length as usize,
                access,
            )?;
        }
        Ok(())
    }

    fn gather(
        &self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), AccessRefused> {
        for (key, from, to) in self.pieces(entries, offset, into.len(), AccessFlags::NONE)? {
            into[to].copy_from_slice(&self.bytes(key)[from]);
        }
        Ok(())
    }

    fn scatter(
        &mut self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        from: &[u8],
    ) -> Result<(), AccessRefused> {
        for (key, to, part) in self.pieces(entries, offset, from.len(), AccessFlags::LOCAL_WRITE)? {
            self.bytes_mut(key)[to].copy_from_slice(&from[part]);
        }
        Ok(())
    }

    fn check_remote(
        &self,
        target: RemoteAddress,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), AccessRefused> {
        assert!(length > 0, "an empty access is not asked for");
        self.range(target.key.0, target.address, length as usize, access)
            .map(|_| ())
    }

    fn read_remote(&self, target: RemoteAddress, into: &mut [u8]) -> Result<(), AccessRefused> {
        let (key, access) = (target.key.0, AccessFlags::REMOTE_READ);
        let range = self.range(key, target.address, into.len(), access)?;
        into.copy_from_slice(&self.bytes(key)[range]);
        Ok(())
    }

    fn write_remote(&mut self, target: RemoteAddress, from: &[u8]) -> Result<(), AccessRefused> {
        let (key, access) = (target.key.0, AccessFlags::REMOTE_WRITE);
        let range = self.range(key, target.address, from.len(), access)?;
        self.bytes_mut(key)[range].copy_from_slice(from);
        Ok(())
    }

    fn update_remote(
        &mut self,
        target: RemoteAddress,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, AccessRefused> {
        let (key, access) = (target.key.0, AccessFlags::REMOTE_ATOMIC);
        let range = self.range(key, target.address, 8, access)?;
        let bytes = &mut self.bytes_mut(key)[range];
        let old = number(bytes);
        bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&change(old)));
        Ok(old)
    }

    fn invalidate(&mut self, key: RemoteKey) -> Result<(), AccessRefused> {
        self.regions.remove(&key.0).map(|_| ()).ok_or(AccessRefused)
    }

    /// There are no windows here.
    fn bind_window(&mut self, _: &WindowBinding) -> Result<(), AccessRefused> {
        Err(AccessRefused)
    }

    fn take_receive(&mut self) -> Option<ReceiveRequest> {
        self.receives.pop_front()
    }

    fn complete(&mut self, completion: QueueCompletion) {
        self.completions.push(completion);
    }

    fn raise(&mut self, event: QueuePairEvent) {
        self.events.push(event);
    }
}

/// Eight bytes in the host's order.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    zerocopy::FromBytes::read_from_bytes(bytes).unwrap()
}
