//! T5 and T6: one-sided requests that are refused, and what they have done until then.

use super::rig::{ALL_ACCESS, MTU, Rig, Tune, USUAL, place};
use legato_verbs::{AccessFlags, MemoryRegion, RemoteKey, SendOperation};

const NOBODYS_KEY: u32 = 0x005a_5a00;

/// What the next attempt is made on.
struct Attempts<'a> {
    rig: &'a mut Rig,
    number: &'static str,
    reads: bool,
    target: MemoryRegion,
    /// The region was deregistered.
    gone: bool,
    tune: Tune,
}

impl<'a> Attempts<'a> {
    fn new(rig: &'a mut Rig, number: &'static str, reads: bool) -> Self {
        let target = rig.area_new(4096, ALL_ACCESS);
        Self {
            rig,
            number,
            reads,
            target,
            gone: false,
            tune: USUAL,
        }
    }

    fn free_target(&mut self) {
        if !std::mem::take(&mut self.gone) {
            self.rig.nic.deregister_region(&self.target).unwrap();
        }
    }

    fn register_again(&mut self, length: u32, access: AccessFlags) {
        self.free_target();
        self.target = self.rig.area_new(length, access);
    }

    /// One WRITE or READ, with a SEND behind it and a receive that this one would take.
    fn attempt(&mut self, name: &str, key_change: u32, offset: i64, length: u32) {
        let Self { rig, target, .. } = self;
        let (mut a, mut b) = rig.two_ends();
        rig.join(&a, &b, &self.tune);
        rig.wipe_inbox();
        if self.reads && !self.gone {
            rig.fill(target);
        }
        rig.post_receive(&mut b, 64);
        let mut remote = place(target, offset);
        remote.key = RemoteKey(remote.key.0 ^ key_change);
        let operation = if self.reads {
            SendOperation::RdmaRead(remote)
        } else {
            SendOperation::RdmaWrite(remote)
        };
        rig.post(&mut a, operation, length);
        rig.post_send(&mut a, 0);
        rig.watch(&mut [(&mut a, 2), (&mut b, 1)], 0);
        let what = if self.reads { "read" } else { "write" };
        rig.line(&format!("{} {what} {name}", self.number));
        rig.put_sends(&a);
        rig.put_receives(&b);
        rig.put_state("requester", &a);
        rig.put_state("responder", &b);
        let inbox = rig.inbox;
        let bytes = rig.written(if self.reads { &inbox } else { target });
        rig.field(&format!("bytes={bytes}"));
        rig.put_events();
        rig.line_end();
        rig.free_both(a, b);
        rig.wipe_inbox();
        self.register_again(4096, ALL_ACCESS);
        self.tune = USUAL;
    }

    /// Both queue pairs allow only the other of WRITE and READ.
    fn forbid(&mut self) -> AccessFlags {
        let other = if self.reads {
            AccessFlags::REMOTE_WRITE
        } else {
            AccessFlags::REMOTE_READ
        };
        let other = AccessFlags::LOCAL_WRITE | other;
        self.tune.access = other;
        other
    }

    fn each_kind(&mut self) {
        self.attempt("allowed", 0, 0, 64);
        self.attempt("with a key that nobody has", NOBODYS_KEY, 0, 64);
        self.attempt("with another variant of the key", 1, 0, 64);
        self.attempt("that starts before the region", 0, -8, 64);
        self.attempt("that ends behind the region", 0, 4096 - 32, 64);
        self.attempt("behind the region", 0, 8192, 64);
        let other = self.forbid();
        self.tune = USUAL;
        self.register_again(4096, other);
        self.attempt("that the region forbids", 0, 0, 64);
        self.forbid();
        self.attempt("that the queue pair forbids", 0, 0, 64);
        self.forbid();
        let name = "that the queue pair forbids, with a key that nobody has";
        self.attempt(name, NOBODYS_KEY, 0, 64);
        let home = self.rig.domain;
        let elsewhere = self.rig.nic.create_protection_domain().unwrap();
        self.rig.domain = elsewhere;
        self.register_again(4096, ALL_ACCESS);
        self.rig.domain = home;
        self.attempt("of another protection domain's region", 0, 0, 64);
        self.rig.nic.destroy_protection_domain(elsewhere).unwrap();
        self.free_target();
        self.gone = true;
        self.attempt("with the key of a region that is gone", 0, 0, 64);
        self.attempt("of no bytes with a key that nobody has", NOBODYS_KEY, 0, 0);
        self.attempt("of no bytes behind the region", 0, 8192, 0);
        self.forbid();
        self.attempt("of no bytes that the queue pair forbids", 0, 0, 0);
    }

    fn each_length(&mut self) {
        self.attempt("of four packets", 0, 0, 4 * MTU);
        self.attempt("of two packets and a byte", 0, 0, 2 * MTU + 1);
        self.register_again(2 * MTU, ALL_ACCESS);
        self.attempt("of four packets, the region has two", 0, 0, 4 * MTU);
        self.register_again(4 * MTU - 8, ALL_ACCESS);
        let name = "of four packets, the region lacks eight bytes";
        self.attempt(name, 0, 0, 4 * MTU);
    }
}

pub(super) fn refused(rig: &mut Rig) {
    for reads in [false, true] {
        let mut attempts = Attempts::new(rig, "T5", reads);
        attempts.each_kind();
        attempts.free_target();
    }
}

pub(super) fn partial(rig: &mut Rig) {
    for reads in [false, true] {
        let mut attempts = Attempts::new(rig, "T6", reads);
        attempts.each_length();
        attempts.free_target();
    }
}
