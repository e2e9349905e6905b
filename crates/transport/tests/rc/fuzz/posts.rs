//! Requests of every kind.

use super::subject::{ENDING, FETCHED, RECEIVED, REGION, SENT};
use crate::harness::{BASE, entry, request};
use legato_base::Random;
use legato_verbs::{
    AccessFlags, LocalKey, RemoteAddress, RemoteKey, ScatterGatherEntry, SendFlags, SendOperation,
    SendRequest, WindowBinding,
};

const WINDOW: WindowBinding = WindowBinding {
    window: RemoteKey(8),
    next: RemoteKey(9),
    region: LocalKey(SENT),
    address: BASE,
    length: 8,
    access: AccessFlags::NONE,
};

/// Of messages: those that are not empty are told apart by their first bytes.
const LENGTHS: [u32; 8] = [0, 16, 255, 256, 272, 512, 600, 1000];

/// So many bytes of a region, in one or two entries.
fn entries(random: &mut Random, key: u32, length: u32) -> Vec<ScatterGatherEntry> {
    let most = u64::from(REGION);
    let mut piece = |length: u32| {
        let offset = random.below(most - u64::from(length) + 1);
        entry(key, offset, length)
    };
    if length.is_multiple_of(3) {
        return vec![piece(length)];
    }
    let first = length / 3;
    vec![piece(first), piece(length - first)]
}

const fn swap(target: RemoteAddress) -> SendOperation {
    SendOperation::CompareAndSwap {
        target,
        compare: 1,
        swap: 2,
    }
}

pub(super) fn receive(random: &mut Random) -> Vec<ScatterGatherEntry> {
    let length = 256 + random.below(u64::from(REGION) - 256) as u32;
    entries(random, RECEIVED, length)
}

pub(super) fn send(random: &mut Random, id: u64, keeps_ending: bool) -> SendRequest {
    let target = RemoteAddress {
        key: RemoteKey(random.next_u64() as u32),
        address: BASE + 8 * random.below(100),
    };
    let length = LENGTHS[random.below(8) as usize];
    let (operation, length) = match random.below(40) {
        0..6 => (SendOperation::Send, length),
        6..9 => (SendOperation::SendWithImmediate(1), length),
        9..11 => (SendOperation::SendWithInvalidate(RemoteKey(1)), length),
        11..17 => (SendOperation::RdmaWrite(target), length),
        17..20 => (SendOperation::RdmaWriteWithImmediate(target, 1), length),
        20..32 => (SendOperation::RdmaRead(target), length),
        32..35 => (SendOperation::FetchAndAdd { target, add: 1 }, 8),
        35..38 => (swap(target), 8),
        38 if keeps_ending => (SendOperation::LocalInvalidate(RemoteKey(ENDING)), 0),
        // There are no windows: that ends it.
        39 if random.ratio(1, 40) => (SendOperation::BindWindow(WINDOW), 0),
        _ => (SendOperation::Send, 0),
    };
    let key = if operation.writes_locally() {
        FETCHED
    } else {
        SENT
    };
    let mut request = request(id, operation, entries(random, key, length));
    let signaled = matches!(operation, SendOperation::LocalInvalidate(_)) || random.ratio(3, 4);
    if !signaled {
        request.flags = SendFlags::NONE;
    }
    for (flag, one_in) in [(SendFlags::FENCE, 8), (SendFlags::SOLICITED, 4)] {
        if random.ratio(1, one_in) {
            request.flags = request.flags | flag;
        }
    }
    if !operation.writes_locally() && length <= 512 && random.ratio(1, 4) {
        request.flags = request.flags | SendFlags::INLINE;
    }
    request
}
