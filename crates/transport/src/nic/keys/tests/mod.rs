mod model;
mod windows;

use super::*;
use alloc::collections::BTreeSet;
use legato_verbs::RemoteKey;

const fn domain(index: u32) -> ProtectionDomain {
    ProtectionDomain {
        index,
        generation: 1,
    }
}

const fn accessor(queue_pair: u32, in_domain: u32) -> Accessor {
    Accessor {
        queue_pair: QueuePair {
            index: 0,
            generation: queue_pair,
        },
        domain: domain(in_domain),
    }
}

const HERE: Accessor = accessor(1, 1);
const READ: AccessFlags = AccessFlags::REMOTE_READ;
const WRITE: AccessFlags = AccessFlags::REMOTE_WRITE;
const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;

fn region() -> Region {
    Region {
        domain: domain(1),
        access: LOCAL | READ,
        windows: true,
        address: 0x1000,
        length: 0x1000,
        owner: 77,
    }
}

fn keys() -> Keys {
    Keys::new(Random::from_seed(1), 100)
}

fn at(key: u32, address: u64) -> RemoteAddress {
    RemoteAddress {
        key: RemoteKey(key),
        address,
    }
}

fn binding(region: LocalKey) -> Binding {
    Binding {
        region,
        address: 0x1100,
        length: 0x100,
        access: WRITE,
    }
}

/// A window, bound for [`HERE`].
fn bound(keys: &mut Keys, to: &Binding) -> RemoteKey {
    let window = keys.allocate_window(domain(1)).unwrap();
    let next = keys.next_window_key(window).unwrap();
    keys.bind(HERE, window, next, to).unwrap();
    next
}

#[test]
fn v8_a_region_refuses_for_the_first_reason() {
    let mut keys = keys();
    let LocalKey(key) = keys.register(region()).unwrap();
    let there = accessor(1, 2);
    for (accessor, key, address, access, expected) in [
        (there, key ^ 1, 0, WRITE, KeyError::Unknown),
        (there, key ^ 0x100, 0, WRITE, KeyError::Unknown),
        (there, key, 0, WRITE, KeyError::OtherDomain),
        (HERE, key, 0, WRITE, KeyError::NotAllowed),
        (HERE, key, 0, READ, KeyError::OutOfRange),
    ] {
        let refused = keys.check_remote(accessor, at(key, address), 1, access);
        assert_eq!(refused, Err(expected));
    }
}

#[test]
fn v8_the_range_of_a_region_is_exact() {
    let mut keys = keys();
    let LocalKey(key) = keys.register(region()).unwrap();
    for (address, length, inside) in [
        (0x1000, 0x1000, true),
        (0x1FFF, 1, true),
        (0x2000, 0, true),
        (0x0FFF, 1, false),
        (0x1000, 0x1001, false),
        (0x2000, 1, false),
        (0, 0x3000, false),
        (u64::MAX, u32::MAX, false),
        (u64::MAX - 0xFFF, 0x1000, false),
    ] {
        let place = keys.check_remote(HERE, at(key, address), length, READ);
        let expected = if inside {
            Ok(Place {
                owner: 77,
                offset: address.wrapping_sub(0x1000),
            })
        } else {
            Err(KeyError::OutOfRange)
        };
        assert_eq!(place, expected, "{address:#x} {length:#x}");
        let entry = ScatterGatherEntry {
            local_key: LocalKey(key),
            address,
            length,
        };
        assert_eq!(keys.check_local(domain(1), &entry, LOCAL), expected);
    }
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let mut keys = Keys::new(Random::from_seed(1), 1);
    let at_the_end = Region {
        address: u64::MAX,
        length: 1,
        ..region()
    };
    assert_eq!(keys.register(at_the_end), Err(KeyError::OutOfRange));
    for access in [WRITE, AccessFlags::REMOTE_ATOMIC] {
        let refused = keys.register(Region { access, ..region() });
        assert_eq!(refused, Err(KeyError::NeedsLocalWrite));
    }
    keys.register(region()).unwrap();
    assert_eq!(keys.register(region()), Err(KeyError::TooMany(1)));
    assert_eq!(keys.allocate_window(domain(1)), Err(KeyError::TooMany(1)));
    assert_eq!(keys.count(), 1);
}

#[test]
fn local_use_needs_the_region_of_the_domain_and_its_right() {
    let mut keys = keys();
    let access = READ;
    let key = keys.register(Region { access, ..region() }).unwrap();
    let entry = ScatterGatherEntry {
        local_key: key,
        address: 0x1000,
        length: 0,
    };
    assert!(
        keys.check_local(domain(1), &entry, AccessFlags::NONE)
            .is_ok()
    );
    let refused = keys.check_local(domain(1), &entry, LOCAL);
    assert_eq!(refused, Err(KeyError::NotAllowed));
    let refused = keys.check_local(domain(2), &entry, AccessFlags::NONE);
    assert_eq!(refused, Err(KeyError::OtherDomain));
    keys.deregister(key).unwrap();
    let refused = keys.check_local(domain(1), &entry, AccessFlags::NONE);
    assert_eq!(refused, Err(KeyError::Unknown));
    // A window's key is no local one.
    let key = keys.register(region()).unwrap();
    let RemoteKey(window) = bound(&mut keys, &binding(key));
    let entry = ScatterGatherEntry {
        local_key: LocalKey(window),
        address: 0x1100,
        length: 1,
    };
    let refused = keys.check_local(domain(1), &entry, AccessFlags::NONE);
    assert_eq!(refused, Err(KeyError::Unknown));
    assert_eq!(keys.deregister(LocalKey(window)), Err(KeyError::Unknown));
}

#[test]
fn no_key_is_issued_twice() {
    let mut keys = Keys::new(Random::from_seed(2), 3);
    let mut issued = BTreeSet::from([0]);
    let kept = keys.register(region()).unwrap();
    assert!(issued.insert(kept.0));
    for _ in 0..100_000 {
        let key = keys.register(region()).unwrap();
        assert!(issued.insert(key.0), "{key:?}");
        keys.deregister(key).unwrap();
        assert_eq!(keys.deregister(key), Err(KeyError::Unknown));
    }
    // Each index is given up after 256 keys, and no sooner.
    assert_eq!(keys.slots.len(), 1 + 100_000_usize.div_ceil(256));
}

#[test]
fn keys_depend_on_the_seed_and_do_not_count_up() {
    let issue = |seed| {
        let mut keys = Keys::new(Random::from_seed(seed), 1000);
        [(); 1000].map(|()| keys.register(region()).unwrap().0)
    };
    let (first, second) = (issue(1), issue(2));
    assert_eq!(first, issue(1));
    let common = first.iter().filter(|key| second.contains(key)).count();
    assert!(common < 3, "{common}");
    let near = |pair: &&[u32]| pair[0].abs_diff(pair[1]) < 1 << 16;
    let neighbours = first.windows(2).filter(near).count();
    assert!(neighbours < 5, "{neighbours}");
}

#[test]
fn an_index_that_would_give_the_key_zero_is_left_out() {
    let mut keys = (0..)
        .map(|seed| Keys::new(Random::from_seed(seed), 1))
        .find(|keys| (1..1000).contains(&keys.permutation.number(0)))
        .unwrap();
    let slot = keys.permutation.number(0);
    keys.slots.resize_with(slot as usize, || Slot {
        tags: Tags::default(),
        object: Object::Nothing,
    });
    keys.register(region()).unwrap();
    assert_eq!(keys.slots.len() as u32, slot + 2);
    for key in 0..=0xFF {
        let refused = keys.check_remote(HERE, at(key, 0x1000), 1, READ);
        assert_eq!(refused, Err(KeyError::Unknown));
    }
}
