use super::*;
use alloc::collections::BTreeMap;

/// Random calls, against a map from each key to what it allows.
#[test]
fn keys_allow_what_a_model_allows() {
    let mut random = Random::from_seed(5);
    let mut keys = Keys::new(random.fork(), 40);
    let mut regions = BTreeMap::<u32, u32>::new();
    let mut windows = BTreeMap::<u32, Option<u32>>::new();
    let mut used = BTreeSet::new();
    let mut last = Vec::from([1]);
    let pick = |random: &mut Random, from: &[u32]| {
        let count = from.len().max(1) as u64;
        from.get(random.below(count) as usize).copied()
    };
    for _ in 0..50_000 {
        let alive: Vec<u32> = regions.keys().chain(windows.keys()).copied().collect();
        let from = if random.ratio(1, 8) { &last } else { &alive };
        let known = pick(&mut random, from).unwrap_or(1);
        match random.below(6) {
            0 => {
                if let Ok(LocalKey(key)) = keys.register(region()) {
                    assert!(used.insert(key));
                    regions.insert(key, 0);
                }
            }
            1 => {
                let expected = regions.get(&known) == Some(&0);
                assert_eq!(keys.deregister(LocalKey(known)).is_ok(), expected);
                if expected {
                    regions.remove(&known);
                }
            }
            2 => {
                if let Ok(RemoteKey(key)) = keys.allocate_window(domain(1)) {
                    assert!(used.insert(key));
                    windows.insert(key, None);
                }
            }
            3 => {
                let all: Vec<u32> = regions.keys().copied().collect();
                let to = pick(&mut random, &all);
                let to = LocalKey(to.unwrap_or(0));
                let next = keys.next_window_key(RemoteKey(known));
                let free = windows.get(&known) == Some(&None) && next != Err(KeyError::UsedUp);
                let expected = free && regions.contains_key(&to.0);
                let next = next.unwrap_or(RemoteKey(0));
                let bound = keys.bind(HERE, RemoteKey(known), next, &binding(to));
                assert_eq!(bound.is_ok(), expected);
                if expected {
                    assert!(used.insert(next.0));
                    windows.remove(&known);
                    windows.insert(next.0, Some(to.0));
                    *regions.get_mut(&to.0).unwrap() += 1;
                }
            }
            4 => {
                let to = windows.get(&known).copied().flatten();
                let ended = keys.invalidate(HERE, RemoteKey(known));
                assert_eq!(ended.is_ok(), to.is_some());
                if let Some(to) = to {
                    windows.insert(known, None);
                    *regions.get_mut(&to).unwrap() -= 1;
                }
            }
            _ => {
                let window = windows.remove(&known);
                let ended = keys.deallocate_window(RemoteKey(known));
                assert_eq!(ended.is_ok(), window.is_some());
                if let Some(to) = window.flatten() {
                    *regions.get_mut(&to).unwrap() -= 1;
                }
            }
        }
        last.push(known);
        if last.len() > 64 {
            last.remove(0);
        }
        assert_eq!(keys.count() as usize, regions.len() + windows.len());
        let reads = keys.check_remote(HERE, at(known, 0x1000), 1, READ);
        assert_eq!(reads.is_ok(), regions.contains_key(&known));
        let writes = keys.check_remote(HERE, at(known, 0x1100), 1, WRITE);
        let is_bound = matches!(windows.get(&known), Some(Some(_)));
        assert_eq!(writes.is_ok(), is_bound);
    }
    assert!(used.len() > 5_000, "{}", used.len());
}
