use super::*;

#[test]
fn a_window_refuses_for_the_first_reason() {
    let mut keys = keys();
    let region = keys.register(region()).unwrap();
    let unbound = keys.allocate_window(domain(1)).unwrap();
    let window = bound(&mut keys, &binding(region));
    let nobody = accessor(2, 2);
    for (accessor, key, address, access, expected) in [
        (nobody, unbound, 0, READ, KeyError::NotBound),
        (nobody, window, 0, READ, KeyError::OtherQueuePair),
        (accessor(1, 2), window, 0, READ, KeyError::OtherDomain),
        (HERE, window, 0x10FF, READ, KeyError::NotAllowed),
        (HERE, window, 0x10FF, WRITE, KeyError::OutOfRange),
        (HERE, window, 0x1200, WRITE, KeyError::OutOfRange),
    ] {
        let refused = keys.check_remote(accessor, at(key.0, address), 1, access);
        assert_eq!(refused, Err(expected));
    }
    let place = Place {
        owner: 77,
        offset: 0x100,
    };
    // The window allows what the region does not allow to peers.
    let allowed = keys.check_remote(HERE, at(window.0, 0x1100), 0x100, WRITE);
    assert_eq!(allowed, Ok(place));
}

#[test]
fn a_region_stays_while_windows_are_bound_to_it() {
    let mut keys = keys();
    let region = keys.register(region()).unwrap();
    let first = bound(&mut keys, &binding(region));
    let second = bound(&mut keys, &binding(region));
    let third = bound(&mut keys, &binding(region));
    assert_eq!(keys.deregister(region), Err(KeyError::HasWindows(3)));
    keys.invalidate(HERE, first).unwrap();
    keys.deallocate_window(second).unwrap();
    assert_eq!(keys.deregister(region), Err(KeyError::HasWindows(1)));
    assert_eq!(keys.unbind_queue_pair(accessor(2, 1).queue_pair), 0);
    assert_eq!(keys.unbind_queue_pair(HERE.queue_pair), 1);
    assert!(keys.deregister(region).is_ok());
    let gone = keys.check_remote(HERE, at(third.0, 0x1100), 1, WRITE);
    assert_eq!(gone, Err(KeyError::NotBound));
    assert_eq!(keys.count(), 2);
}

#[test]
fn an_invalidated_window_can_be_bound_again_under_the_next_key() {
    let mut keys = keys();
    let region = keys.register(region()).unwrap();
    let window = bound(&mut keys, &binding(region));
    let next = keys.next_window_key(window).unwrap();
    let refused = keys.bind(HERE, window, next, &binding(region));
    assert_eq!(refused, Err(KeyError::AlreadyBound));
    // Only the queue pair that it is bound for can end it, or that one's peer.
    let refused = keys.invalidate(accessor(2, 1), window);
    assert_eq!(refused, Err(KeyError::OtherQueuePair));
    keys.invalidate(HERE, window).unwrap();
    assert_eq!(keys.invalidate(HERE, window), Err(KeyError::NotBound));
    let refused = keys.bind(HERE, window, window, &binding(region));
    assert_eq!(refused, Err(KeyError::NotNext));
    keys.bind(HERE, window, next, &binding(region)).unwrap();
    let old = keys.check_remote(HERE, at(window.0, 0x1100), 1, WRITE);
    assert_eq!(old, Err(KeyError::Unknown));
    assert_eq!(keys.invalidate(HERE, window), Err(KeyError::Unknown));
    assert!(
        keys.check_remote(HERE, at(next.0, 0x1100), 1, WRITE)
            .is_ok()
    );
    // Nothing ends a region but its owner.
    let refused = keys.invalidate(HERE, RemoteKey(region.0));
    assert_eq!(refused, Err(KeyError::Unknown));
}

#[test]
fn windows_are_bound_only_to_what_belongs_together() {
    let mut keys = keys();
    let good = keys.register(region()).unwrap();
    let windows = false;
    let without = keys
        .register(Region {
            windows,
            ..region()
        })
        .unwrap();
    let access = READ;
    let read_only = keys.register(Region { access, ..region() }).unwrap();
    let elsewhere = Region {
        domain: domain(2),
        ..region()
    };
    let elsewhere = keys.register(elsewhere).unwrap();
    let window = keys.allocate_window(domain(1)).unwrap();
    let next = keys.next_window_key(window).unwrap();
    let fits = binding(good);
    let empty = Binding { length: 0, ..fits };
    let too_long = Binding {
        length: u64::MAX,
        ..fits
    };
    for (accessor, binding, expected) in [
        (accessor(1, 2), fits, KeyError::OtherDomain),
        (accessor(1, 2), binding(elsewhere), KeyError::OtherDomain),
        (HERE, binding(LocalKey(window.0)), KeyError::Unknown),
        (HERE, binding(elsewhere), KeyError::OtherDomain),
        (HERE, binding(without), KeyError::NotAllowed),
        (HERE, empty, KeyError::Empty),
        (HERE, too_long, KeyError::OutOfRange),
        (HERE, binding(read_only), KeyError::NeedsLocalWrite),
    ] {
        let refused = keys.bind(accessor, window, next, &binding);
        assert_eq!(refused, Err(expected));
    }
    keys.bind(HERE, window, next, &fits).unwrap();
}

#[test]
fn a_window_is_used_up_after_all_its_keys() {
    let mut keys = keys();
    let region = keys.register(region()).unwrap();
    let mut window = keys.allocate_window(domain(1)).unwrap();
    let mut issued = BTreeSet::from([window]);
    for _ in 1..256 {
        let next = keys.next_window_key(window).unwrap();
        keys.bind(HERE, window, next, &binding(region)).unwrap();
        keys.invalidate(HERE, next).unwrap();
        assert!(issued.insert(next));
        window = next;
    }
    assert_eq!(keys.next_window_key(window), Err(KeyError::UsedUp));
    let first = *issued.first().unwrap();
    let refused = keys.bind(HERE, window, first, &binding(region));
    assert_eq!(refused, Err(KeyError::UsedUp));
    keys.deallocate_window(window).unwrap();
    let next = keys.allocate_window(domain(1)).unwrap();
    assert!(!issued.contains(&next));
}
