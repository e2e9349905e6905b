//! Registration: keys, bounds, and what a posted request holds on to.

use super::expect::{equal, must, refused, send};
use super::session::{ALL_ACCESS, Checked, SMALL, Session, Side};
use super::{Rule, World};
use crate::{CompletionKind, CompletionStatus, VerbsError};
use alloc::collections::BTreeSet;
use alloc::vec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "regions: keys are never issued twice, memory starts as zeros",
        check: keys_are_never_issued_twice,
    },
    Rule {
        name: "regions: bounds of local access",
        check: bounds_of_local_access,
    },
    Rule {
        name: "regions: deregistering while a request is posted is refused",
        check: deregister_while_posted,
    },
    Rule {
        name: "regions: local keys are checked",
        check: local_keys_are_checked,
    },
];

fn keys_are_never_issued_twice(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let provider = session.on(Side::Left);
    let domain = must("create a domain", provider.create_protection_domain())?;
    let mut keys = BTreeSet::new();
    for round in 0..200 {
        let made = provider.allocate_region(domain, 4096, ALL_ACCESS);
        let region = must("allocate", made)?;
        let fresh = keys.insert(region.remote_key);
        equal("a remote key is new", &(round, true), &(round, fresh))?;
        let mut bytes = vec![1; 4096];
        must("read", provider.read_region(&region, 0, &mut bytes))?;
        equal("fresh memory", &vec![0; 4096], &bytes)?;
        must("write", provider.write_region(&region, 0, &[0xFF; 4096]))?;
        must("deregister", provider.deregister_region(&region))?;
        let again = provider.deregister_region(&region);
        refused("deregister twice", &again, |_| true, "an error")?;
    }
    equal(
        "regions alive",
        &0,
        &provider.resource_counts().memory_regions,
    )?;
    must(
        "destroy the domain",
        provider.destroy_protection_domain(domain),
    )
}

fn bounds_of_local_access(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let provider = session.on(Side::Right);
    let domain = must("create a domain", provider.create_protection_domain())?;
    let region = must(
        "allocate",
        provider.allocate_region(domain, 100, ALL_ACCESS),
    )?;
    must(
        "write the last byte",
        provider.write_region(&region, 99, &[7]),
    )?;
    must(
        "write nothing at the end",
        provider.write_region(&region, 100, &[]),
    )?;
    for (offset, length) in [(100, 1), (99, 2), (0, 101), (u64::MAX, 2), (u64::MAX, 1)] {
        let outside = Err(VerbsError::LocalProtection);
        let written = provider.write_region(&region, offset, &vec![1; length]);
        equal("write outside the region", &outside, &written)?;
        let read = provider.read_region(&region, offset, &mut vec![0; length]);
        equal("read outside the region", &outside, &read)?;
    }
    let mut all = [1; 100];
    must("read all", provider.read_region(&region, 0, &mut all))?;
    let mut expected = [0; 100];
    expected[99] = 7;
    equal("the region", &expected[..], &all[..])
}

fn deregister_while_posted(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let end = session.end(Side::Left, SMALL)?;
    session.post_receive(&end, 1, vec![end.region.entry(0, 16)])?;
    let provider = session.on(Side::Left);
    let busy = |error: &VerbsError| matches!(error, VerbsError::Busy(_));
    let answer = provider.deregister_region(&end.region);
    refused("deregister with a posted receive", &answer, busy, "Busy")?;
    must("to error", provider.modify_to_error(end.queue_pair))?;
    session.completes(&end, &[(1, Err(CompletionStatus::WorkRequestFlushed))])?;
    let answer = session.on(Side::Left).deregister_region(&end.region);
    must("deregister when the receive was flushed", answer)
}

/// A refusal when posting and an error completion are both allowed; success is not.
fn local_keys_are_checked(world: &mut dyn World) -> Checked {
    for wrong in 0..3 {
        let mut session = Session::new(world);
        let (left, right) = session.connected(SMALL)?;
        session.post_receive(&right, 5, vec![right.region.entry(0, 64)])?;
        let mut entry = left.region.entry(0, 64);
        match wrong {
            0 => entry.local_key.0 = !entry.local_key.0,
            1 => entry.address += left.region.length - 63,
            _ => entry.address = u64::MAX - 10,
        }
        let request = send(1, vec![entry]);
        match session.on(Side::Left).post_send(left.queue_pair, &request) {
            Ok(()) => session.completes(&left, &[(1, Err(CompletionStatus::LocalProtection))])?,
            Err(error) => {
                equal("the refusal", &VerbsError::LocalProtection, &error)?;
                session.post_send(&left, &send(2, vec![left.region.entry(0, 8)]))?;
                session.completes(&left, &[(2, Ok(CompletionKind::Send))])?;
            }
        }
    }
    Ok(())
}
