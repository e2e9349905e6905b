//! T13: atomics, immediate numbers, inline data, keys that end.

use super::rig::{ALL_ACCESS, End, MTU, QUEUE, Rig, Tune, USUAL, place};
use legato_verbs::{
    AccessFlags, CompletionKind, MemoryRegion, RemoteKey, SendFlags, SendOperation, WindowBinding,
};

/// Two ends and the memory that they are about.
struct Stage<'a> {
    rig: &'a mut Rig,
    a: End,
    b: End,
    target: MemoryRegion,
}

impl<'a> Stage<'a> {
    fn begin(rig: &'a mut Rig, region: AccessFlags, access: AccessFlags) -> Self {
        let (a, b) = rig.two_ends();
        rig.join(&a, &b, &Tune { access, ..USUAL });
        let target = rig.area_new(4096, region);
        rig.wipe_inbox();
        Self { rig, a, b, target }
    }

    fn watch(&mut self, of_a: usize, of_b: usize) {
        let (a, b) = (&mut self.a, &mut self.b);
        self.rig.watch(&mut [(a, of_a), (b, of_b)], 0);
    }

    fn finish(self) {
        let Self { rig, a, b, target } = self;
        rig.put_pair(&a, &b, ["requester", "responder"]);
        rig.free_both(a, b);
        rig.nic.deregister_region(&target).unwrap();
        rig.wipe_inbox();
    }

    fn put_word(&mut self, name: &str, area: &MemoryRegion) {
        let mut bytes = [0; 8];
        self.rig.nic.read_region(area, 0, &mut bytes).unwrap();
        let word: u64 = zerocopy::transmute!(bytes);
        self.rig.field(&format!("{name}={word}"));
    }

    fn put_words(&mut self) {
        let (inbox, target) = (self.rig.inbox, self.target);
        self.put_word("was", &inbox);
        self.put_word("is", &target);
    }
}

fn atomic(
    rig: &mut Rig,
    name: &str,
    rights: (AccessFlags, AccessFlags),
    offset: i64,
    operation: impl FnOnce(legato_verbs::RemoteAddress) -> SendOperation,
) {
    let mut stage = Stage::begin(rig, rights.0, rights.1);
    let word: [u8; 8] = zerocopy::transmute!(1000_u64);
    let target = stage.target;
    stage.rig.nic.write_region(&target, 0, &word).unwrap();
    stage.rig.line(&format!("T13 {name}"));
    let operation = operation(place(&target, offset));
    let posted = stage.rig.post(&mut stage.a, operation, 8);
    stage.rig.field(&format!("post={posted}"));
    stage.watch(1, 0);
    stage.put_words();
    stage.finish();
}

fn atomics(rig: &mut Rig) {
    let swap_if = |compare| {
        move |target| SendOperation::CompareAndSwap {
            target,
            compare,
            swap: 7,
        }
    };
    let adding = |add| move |target| SendOperation::FetchAndAdd { target, add };
    let all = (ALL_ACCESS, ALL_ACCESS);
    let no_atomic = AccessFlags::from_bits(0b0111);
    atomic(rig, "compare and swap, equal", all, 0, swap_if(1000));
    atomic(rig, "compare and swap, not equal", all, 0, swap_if(1001));
    atomic(rig, "fetch and add", all, 0, adding(5));
    let name = "fetch and add, past the largest number";
    atomic(rig, name, all, 0, adding(u64::MAX - 998));
    let name = "fetch and add, not a multiple of eight";
    atomic(rig, name, all, 4, adding(5));
    atomic(rig, "fetch and add behind the region", all, 8192, adding(5));
    let name = "fetch and add that the region forbids";
    atomic(rig, name, (no_atomic, ALL_ACCESS), 0, adding(5));
    let name = "fetch and add that the queue pair forbids";
    atomic(rig, name, (ALL_ACCESS, no_atomic), 0, adding(5));

    let mut stage = Stage::begin(rig, ALL_ACCESS, ALL_ACCESS);
    for _ in 0..QUEUE {
        let add = adding(1)(place(&stage.target, 0));
        stage.rig.post(&mut stage.a, add, 8);
    }
    stage.watch(QUEUE as usize, 0);
    stage.rig.line("T13 fetch and add, eight at once");
    stage.put_words();
    stage.finish();

    // The answer has no place to go: is the request executed all the same?
    let mut stage = Stage::begin(rig, ALL_ACCESS, ALL_ACCESS);
    let add = adding(5)(place(&stage.target, 0));
    let mut nowhere = stage.rig.inbox.entry(0, 8);
    nowhere.local_key.0 ^= 0x005a_5a00;
    let line = "T13 fetch and add into a local key that nobody has";
    stage.rig.line(line);
    let signaled = SendFlags::SIGNALED;
    let posted = stage
        .rig
        .post_entry(&mut stage.a, add, Some(nowhere), signaled);
    stage.rig.field(&format!("post={posted}"));
    stage.watch(1, 0);
    stage.put_words();
    stage.finish();
}

const NUMBER: u32 = 0x1234_5678;

fn immediate(
    rig: &mut Rig,
    name: &str,
    region: AccessFlags,
    writes: bool,
    length: u32,
    receive: bool,
) {
    let mut stage = Stage::begin(rig, region, ALL_ACCESS);
    if receive {
        stage.rig.post_receive(&mut stage.b, 64);
    }
    let operation = if writes {
        SendOperation::RdmaWriteWithImmediate(place(&stage.target, 0), NUMBER)
    } else {
        SendOperation::SendWithImmediate(NUMBER)
    };
    stage.rig.post(&mut stage.a, operation, length);
    stage.watch(1, usize::from(receive));
    stage.rig.line(&format!("T13 {name}"));
    let area = if writes {
        stage.target
    } else {
        stage.rig.inbox
    };
    let bytes = stage.rig.written(&area);
    stage.rig.field(&format!("bytes={bytes}"));
    if let Some(Ok(received)) = stage.b.log.first().map(|completion| completion.result) {
        let (length, kind, number) = match received {
            CompletionKind::ReceiveWithImmediate { length, immediate } => {
                (length, "send", Some(immediate))
            }
            CompletionKind::ReceiveRdmaWithImmediate { length, immediate } => {
                (length, "write", Some(immediate))
            }
            CompletionKind::Receive { length } => (length, "send", None),
            other => panic!("{other:?}"),
        };
        stage.rig.field(&format!("received={length} kind={kind}"));
        if let Some(number) = number {
            stage.rig.field(&format!("immediate={number:x}"));
        }
    }
    stage.finish();
}

fn inlined(rig: &mut Rig, name: &str, length: u32) {
    let mut stage = Stage::begin(rig, ALL_ACCESS, ALL_ACCESS);
    stage.rig.post_receive(&mut stage.b, 64);
    // The bytes are taken when it is posted. The trait finds them by a key, so there is one.
    let bytes = stage.rig.area_new(1024, AccessFlags::NONE);
    stage.rig.fill(&bytes);
    let entry = Some(bytes.entry(0, length));
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let posted = stage
        .rig
        .post_entry(&mut stage.a, SendOperation::Send, entry, flags);
    stage.rig.wipe(&bytes);
    let wanted = usize::from(posted == 0);
    stage.watch(wanted, wanted);
    stage.rig.line(&format!("T13 {name}"));
    let inbox = stage.rig.inbox;
    let written = stage.rig.written(&inbox);
    stage.rig.field(&format!("post={posted} bytes={written}"));
    stage.rig.nic.deregister_region(&bytes).unwrap();
    stage.finish();
}

fn keys_of_regions(rig: &mut Rig) {
    for (name, key_change) in [
        ("the key of a region", 0),
        ("a key that nobody has", 0x005a_5a00),
    ] {
        let mut stage = Stage::begin(rig, ALL_ACCESS, ALL_ACCESS);
        stage.rig.post_receive(&mut stage.b, 64);
        stage.rig.line(&format!("T13 send with invalidate, {name}"));
        let key = RemoteKey(stage.target.remote_key.0 ^ key_change);
        let operation = SendOperation::SendWithInvalidate(key);
        let posted = stage.rig.post(&mut stage.a, operation, 0);
        stage.rig.field(&format!("post={posted}"));
        stage.watch(1, 1);
        stage.finish();
    }

    let mut stage = Stage::begin(rig, ALL_ACCESS, ALL_ACCESS);
    stage.rig.line("T13 local invalidate, the key of a region");
    let operation = SendOperation::LocalInvalidate(stage.target.remote_key);
    let posted = stage.rig.post(&mut stage.a, operation, 0);
    stage.rig.field(&format!("post={posted}"));
    stage.watch(1, 0);
    stage.finish();
}

impl Stage<'_> {
    /// A window on `target`, bound by `b`, and its key.
    fn bind_window(&mut self) -> RemoteKey {
        let nic = &mut self.rig.nic;
        let window = nic.allocate_window(self.rig.domain).unwrap();
        let next = nic.next_window_key(window).unwrap();
        let binding = WindowBinding {
            window,
            next,
            region: self.target.local_key,
            address: self.target.address,
            length: 4096,
            access: AccessFlags::REMOTE_WRITE,
        };
        let bind = SendOperation::BindWindow(binding);
        assert_eq!(self.rig.post(&mut self.b, bind, 0), 0, "post of a bind");
        self.rig.watch(&mut [(&mut self.b, 1)], 0);
        next
    }

    /// A write of 64 by the window's key, and how much of it arrives.
    fn write_by_window(&mut self, window: RemoteKey, wanted: usize) {
        let mut to = place(&self.target, 0);
        to.key = window;
        let write = SendOperation::RdmaWrite(to);
        self.rig.post(&mut self.a, write, 64);
        self.watch(wanted, 0);
        let target = self.target;
        let bytes = self.rig.written(&target);
        self.rig.field(&format!("bytes={bytes}"));
    }

    /// The status of a completion of `b`.
    fn status(&self, number: usize) -> i32 {
        let status = |completion: &legato_verbs::Completion| match completion.result {
            Ok(_) => 0,
            Err(status) => i32::from(status.code()),
        };
        self.b.log.get(number).map_or(-1, status)
    }
}

fn windows(rig: &mut Rig, remote: bool) {
    let bind = AccessFlags::WINDOW_BIND;
    let mut stage = Stage::begin(rig, ALL_ACCESS | bind, ALL_ACCESS);
    let window = stage.bind_window();
    let who = if remote { "user" } else { "owner" };
    stage.rig.line(&format!("T13 a window that its {who} ends"));
    let bound = stage.status(0);
    stage.rig.field(&format!("bound={bound}"));
    stage.write_by_window(window, 1);
    let target = stage.target;
    stage.rig.wipe(&target);
    if remote {
        stage.rig.post_receive(&mut stage.b, 64);
        let end = SendOperation::SendWithInvalidate(window);
        let posted = stage.rig.post(&mut stage.a, end, 0);
        stage.rig.field(&format!("post={posted}"));
        stage.watch(2, 2);
        let told = match stage.b.log.get(1).map(|completion| completion.result) {
            // The trait has the key and the flag in one.
            Some(Ok(CompletionKind::ReceiveWithInvalidate { key, .. })) if key == window => {
                "key=told flag=set"
            }
            Some(Ok(CompletionKind::ReceiveWithInvalidate { .. })) => "key=not-told flag=set",
            _ => "key=not-told flag=not-set",
        };
        stage.rig.field(told);
    } else {
        let end = SendOperation::LocalInvalidate(window);
        let posted = stage.rig.post(&mut stage.b, end, 0);
        stage.rig.field(&format!("post={posted}"));
        stage.rig.watch(&mut [(&mut stage.b, 2)], 0);
        let ended = stage.status(1);
        stage.rig.field(&format!("ended={ended}"));
    }
    stage.write_by_window(window, if remote { 3 } else { 2 });
    stage.rig.nic.deallocate_window(window).unwrap();
    stage.finish();
}

pub(super) fn operations(rig: &mut Rig) {
    atomics(rig);
    let (all, no_write) = (
        ALL_ACCESS,
        AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
    );
    let two = 2 * MTU;
    immediate(rig, "send with immediate", all, false, 8, true);
    let name = "send of no bytes with immediate";
    immediate(rig, name, all, false, 0, true);
    immediate(rig, "write with immediate", all, true, two, true);
    let name = "write of no bytes with immediate";
    immediate(rig, name, all, true, 0, true);
    let name = "write with immediate, no receive";
    immediate(rig, name, all, true, 8, false);
    // What becomes of the receive that a refused one would take?
    let name = "write with immediate that the region forbids";
    immediate(rig, name, no_write, true, 8, true);
    let name = "write of two packets with immediate that the region forbids";
    immediate(rig, name, no_write, true, two, true);
    let name = "write with immediate that the region forbids, no receive";
    immediate(rig, name, no_write, true, 8, false);
    inlined(rig, "inline data", 64);
    inlined(rig, "inline data, too much", 1024);
    keys_of_regions(rig);
    windows(rig, false);
    windows(rig, true);
}
