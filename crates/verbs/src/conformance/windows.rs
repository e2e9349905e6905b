//! Memory windows: access that is given to one peer, and taken away from it alone.

use super::expect::{equal, must, pattern, signaled};
use super::session::{Checked, End, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    AccessFlags, CompletionKind, CompletionStatus, MemoryRegion, RemoteAddress, RemoteKey,
    SendOperation, VerbsError, WindowBinding,
};
use alloc::vec;
use alloc::vec::Vec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "a provider without windows says so",
        check: no_windows,
    },
    Rule {
        name: "a window gives one peer access and takes it away",
        check: window_comes_and_goes,
    },
    Rule {
        name: "a window is for the queue pair that binds it",
        check: window_of_another,
    },
    Rule {
        name: "a peer can end the window that it was given",
        check: send_with_invalidate,
    },
    Rule {
        name: "no key of a window comes twice",
        check: keys_come_once,
    },
];

const WINDOWED: AccessFlags = AccessFlags::from_bits(0b1_0001);

fn has_windows(session: &mut Session<'_>) -> bool {
    session.on(Side::Right).attributes().memory_windows_max > 0
}

fn no_windows(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    if has_windows(&mut session) {
        return Ok(());
    }
    let end = session.end(Side::Right, SMALL)?;
    let made = session.on(Side::Right).allocate_window(end.domain);
    let unsupported = matches!(made, Err(VerbsError::Unsupported(_)));
    equal("allocate a window: Unsupported", &true, &unsupported)
}

/// A region that peers reach through windows only, with bytes in it, and a bound window.
struct Windowed {
    region: MemoryRegion,
    key: RemoteKey,
    bytes: Vec<u8>,
}

fn windowed(session: &mut Session<'_>, end: &End) -> Checked<Windowed> {
    let provider = session.on(end.side);
    let made = provider.allocate_region(end.domain, 4096, WINDOWED);
    let region = must("allocate a region for windows", made)?;
    let bytes = pattern(4, 4096);
    must("fill", provider.write_region(&region, 0, &bytes))?;
    let made = provider.allocate_window(end.domain);
    let window = must("allocate a window", made)?;
    let key = bind(session, end, &region, window)?;
    Ok(Windowed { region, key, bytes })
}

/// Binds the window to the region's second half, for READ.
fn bind(
    session: &mut Session<'_>,
    end: &End,
    region: &MemoryRegion,
    window: RemoteKey,
) -> Checked<RemoteKey> {
    let next = session.on(end.side).next_window_key(window);
    let next = must("the window's next key", next)?;
    let binding = WindowBinding {
        window,
        next,
        region: region.local_key,
        address: region.address + 2048,
        length: 2048,
        access: AccessFlags::REMOTE_READ,
    };
    let operation = SendOperation::BindWindow(binding);
    session.post_send(end, &signaled(90, operation, Vec::new()))?;
    session.completes(end, &[(90, Ok(CompletionKind::BindWindow))])?;
    Ok(next)
}

/// READs 64 bytes at an offset of the region by a key.
fn read(
    session: &mut Session<'_>,
    by: &End,
    windowed: &Windowed,
    key: RemoteKey,
    offset: u64,
) -> Checked<Result<CompletionKind, CompletionStatus>> {
    let address = windowed.region.address + offset;
    let operation = SendOperation::RdmaRead(RemoteAddress { key, address });
    session.fill(by, 0, &[0; 64])?;
    session.post_send(by, &signaled(80, operation, vec![by.region.entry(0, 64)]))?;
    let came = session.completions(by, 1)?;
    let result = came
        .first()
        .map_or(Ok(CompletionKind::Send), |it| it.result);
    if result.is_ok() {
        let start = offset as usize;
        let bytes = session.bytes(by, 0, 64)?;
        equal(
            "the bytes read",
            &windowed.bytes[start..start + 64],
            &bytes[..],
        )?;
    }
    Ok(result)
}

const READ: Result<CompletionKind, CompletionStatus> = Ok(CompletionKind::RdmaRead);
const DENIED: Result<CompletionKind, CompletionStatus> = Err(CompletionStatus::RemoteAccess);

fn window_comes_and_goes(world: &mut dyn World) -> Checked {
    for outside in [false, true] {
        let mut session = Session::new(world);
        if !has_windows(&mut session) {
            return Ok(());
        }
        let (left, right) = session.connected(SMALL)?;
        let it = windowed(&mut session, &right)?;
        let got = read(&mut session, &left, &it, it.key, 2048)?;
        equal("READ through the window", &READ, &got)?;
        if outside {
            let got = read(&mut session, &left, &it, it.key, 0)?;
            equal("READ outside the window", &DENIED, &got)?;
            continue;
        }
        let end = SendOperation::LocalInvalidate(it.key);
        session.post_send(&right, &signaled(91, end, Vec::new()))?;
        session.completes(&right, &[(91, Ok(CompletionKind::LocalInvalidate))])?;
        let key = bind(&mut session, &right, &it.region, it.key)?;
        let got = read(&mut session, &left, &it, key, 4096 - 64)?;
        equal("READ after another binding", &READ, &got)?;
        let got = read(&mut session, &left, &it, it.key, 2048)?;
        equal("READ by the key of before", &DENIED, &got)?;
        let ended = session.on(Side::Right).deallocate_window(key);
        must("deallocate the window", ended)?;
        let ended = session.on(Side::Right).deregister_region(&it.region);
        must("deregister the region", ended)?;
    }
    Ok(())
}

fn window_of_another(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    if !has_windows(&mut session) {
        return Ok(());
    }
    let (left, right) = session.connected(SMALL)?;
    let it = windowed(&mut session, &right)?;
    // A second connection whose queue pair is in the window's domain.
    let other = session.end(Side::Left, SMALL)?;
    let provider = session.on(Side::Right);
    let queue = must("create a queue", provider.create_completion_queue(16))?;
    let init = crate::QueuePairInit::new(right.domain, queue, SMALL);
    let made = provider.create_queue_pair(&init);
    let queue_pair = must("create a queue pair", made)?;
    must("to Init", provider.modify_to_init(queue_pair))?;
    let second = End {
        queue,
        queue_pair,
        ..right
    };
    session.connect(&other, &second)?;
    let got = read(&mut session, &other, &it, it.key, 2048)?;
    equal("READ through another's window", &DENIED, &got)?;
    let got = read(&mut session, &left, &it, it.key, 2048)?;
    equal("READ through the window", &READ, &got)
}

fn send_with_invalidate(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    if !has_windows(&mut session) {
        return Ok(());
    }
    let (left, right) = session.connected(SMALL)?;
    let it = windowed(&mut session, &right)?;
    let got = read(&mut session, &left, &it, it.key, 2048)?;
    equal("READ through the window", &READ, &got)?;
    session.post_receive(&right, 10, vec![right.region.entry(0, 64)])?;
    let operation = SendOperation::SendWithInvalidate(it.key);
    session.post_send(
        &left,
        &signaled(1, operation, vec![left.region.entry(0, 8)]),
    )?;
    session.completes(&left, &[(1, Ok(CompletionKind::Send))])?;
    let received = Ok(CompletionKind::ReceiveWithInvalidate {
        length: 8,
        key: it.key,
    });
    session.completes(&right, &[(10, received)])?;
    let got = read(&mut session, &left, &it, it.key, 2048)?;
    equal("READ after its end", &DENIED, &got)
}

fn keys_come_once(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    if !has_windows(&mut session) {
        return Ok(());
    }
    let end = session.end(Side::Right, SMALL)?;
    let mut keys: Vec<RemoteKey> = vec![end.region.remote_key];
    for _ in 0..100 {
        let provider = session.on(Side::Right);
        let window = must("allocate", provider.allocate_window(end.domain))?;
        let again = keys.contains(&window);
        equal("a window's key was there before", &false, &again)?;
        keys.push(window);
        must("deallocate", provider.deallocate_window(window))?;
        let stale = provider.deallocate_window(window);
        equal("deallocate twice", &true, &stale.is_err())?;
    }
    session.dismantle(end)
}
