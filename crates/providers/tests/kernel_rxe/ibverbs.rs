//! V-21, V-22: the two providers on one wire: `ibverbs` on the kernel's `rdma_rxe` in the guest, and the
//! software RoCE NIC on this side; who listens, who drives and by which addresses, in every combination.
//! And in the guest alone, `ibverbs` against `rping` and perftest of the distribution.

use crate::both_ends::{answer, drive, part, prepare};
use crate::guest::{Guest, own_name};
use crate::rig::{Family, Rig, nic_at};
use crate::side::Peer;
use crate::{halves, perftest, returned, rping_there};
use legato_providers::ibverbs::IbverbsProvider;
use legato_providers::{Pollable, RoceProvider};
use legato_verbs::{Address, Provider, ROCE_PORT};
use std::net::{IpAddr, SocketAddr};

/// What the far side is to be, for the program that is started there.
const ROLE: &str = "LEGATO_FAR_SIDE";
/// Of `rdma_cm`'s, where `rping` listens or comes to.
const RPING: u16 = 7176;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Role {
    listens: bool,
    drives: bool,
}

impl Role {
    const fn of_the_other(self) -> Self {
        Self {
            listens: !self.listens,
            drives: !self.drives,
        }
    }
}

/// What an end does, from its objects to their end.
fn play<P: Provider + Pollable>(provider: P, role: Role, address: &Address, ready: impl FnOnce()) {
    let mut end = Peer::over(provider);
    prepare(&mut end);
    let far = match role.listens {
        true => end.serve(address, ready),
        false => end.connect(address),
    };
    match role.drives {
        true => drive(&mut end, far),
        false => answer(&mut end),
    }
    part(&mut end, role.drives);
}

fn verbs_at(ip: IpAddr, port: u16) -> Address {
    Address::Verbs(SocketAddr::new(ip, port))
}

/// The program that was started in the guest, which is this one.
#[test]
#[ignore = "a test on the link starts it in the guest"]
fn far_side() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<_> = role.split(' ').collect();
    let address: Address = words[2].parse().unwrap();
    let listens = words[0] == "listens";
    let provider = match listens {
        true => IbverbsProvider::open(&address),
        false => IbverbsProvider::open_towards(&address),
    };
    let provider = provider.unwrap();
    let ready = || println!("\nlistens");
    match words[1] {
        "rping" if listens => rping_there::serve(provider, &address, ready),
        "rping" => rping_there::ask(provider, &address),
        "attend" => returned::attend(provider, &address, ready),
        "halves" => halves::attend(provider, &address, ready),
        "is_read" => perftest::is_read(&mut Rig::in_the_guest(provider)),
        "is_written" => perftest::is_written(&mut Rig::in_the_guest(provider)),
        "writes" => perftest::writes(&mut Rig::in_the_guest(provider)),
        word => {
            let role = Role {
                listens,
                drives: word == "drives",
            };
            play(provider, role, &address, ready);
        }
    }
    println!("\nfar side ends well");
}

/// Starts it.
fn start(guest: &mut Guest, listens: bool, does: &str, address: &Address) {
    let name = own_name();
    let listens = if listens { "listens" } else { "connects" };
    guest.say(&format!(
        "{ROLE}='{listens} {does} {address}' ./{name} --exact ibverbs::far_side --ignored \
         --nocapture --quiet --test-threads=1; echo far status $?"
    ));
}

fn expect_good_end(guest: &mut Guest) {
    guest.await_line("far side ends well");
    assert_eq!(guest.await_line("far status "), "far status 0");
    // Only the kernel's own queue pair of connection management is left.
    guest.say("until rdma res show | grep -q ' qp 1 '; do sleep 0.1; done; echo nothing left");
    guest.await_line("nothing left");
}

fn together(family: Family, here: Role) {
    let mut guest = Guest::new();
    let there = here.of_the_other();
    let (own, far) = (family.here(), family.there());
    let does = if there.drives { "drives" } else { "answers" };
    let nic = RoceProvider::open(&nic_at(own)).unwrap();
    if here.listens {
        let address = verbs_at(own, ROCE_PORT);
        play(nic, here, &nic_at(own), || {
            start(&mut guest, false, does, &address)
        });
    } else {
        start(&mut guest, true, does, &verbs_at(far, ROCE_PORT));
        guest.await_line("listens");
        play(nic, here, &nic_at(far), || {});
    }
    expect_good_end(&mut guest);
}

macro_rules! combinations {
    ($($name:ident: $family:ident, listens $listens:literal, drives $drives:literal;)*) => {$(
        #[test]
        #[ignore = "`beside_a_guest` runs it, on the link"]
        fn $name() {
            let role = Role {
                listens: $listens,
                drives: $drives,
            };
            together(Family::$family, role);
        }
    )*};
}

combinations! {
    v21_roce_listens_and_drives_ibverbs: Ipv4, listens true, drives true;
    v21_roce_listens_and_ibverbs_drives_it: Ipv4, listens true, drives false;
    v21_ibverbs_listens_and_roce_drives_it: Ipv4, listens false, drives true;
    v21_ibverbs_listens_and_drives_roce: Ipv4, listens false, drives false;
    v21_ibverbs_listens_and_roce_drives_it_over_ipv6: Ipv6, listens false, drives true;
    v21_roce_listens_and_ibverbs_drives_it_over_ipv6: Ipv6, listens true, drives false;
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_ibverbs_asks_rping() {
    let mut guest = Guest::new();
    let ip = Family::Ipv4.there();
    // What it says comes when the other process has ended: they would share lines.
    guest.say(&format!("rping -s -a {ip} -p {RPING} -v >rping.out 2>&1 &"));
    guest.say("until rdma res show cm_id | grep -q LISTEN; do sleep 0.1; done; echo rping listens");
    guest.await_line("rping listens");
    start(&mut guest, false, "rping", &verbs_at(ip, RPING));
    expect_good_end(&mut guest);
    guest.say("wait; cat rping.out");
    for round in 0..rping_there::ROUNDS {
        let shown = guest.await_line("server ping data: ");
        let text = rping_there::text_of(round);
        assert_eq!(
            shown,
            format!("server ping data: {}", text.trim_end_matches('\0'))
        );
    }
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_ibverbs_serves_rping() {
    let mut guest = Guest::new();
    let ip = Family::Ipv4.there();
    let rounds = rping_there::ROUNDS;
    // It comes when the other is there: its shell is the same.
    guest.say(&format!(
        "(until rdma res show cm_id | grep -q LISTEN; do sleep 0.1; done; \
         rping -c -a {ip} -p {RPING} -C {rounds} -S {} -V; echo asked $? >asked) &",
        rping_there::LENGTH
    ));
    start(&mut guest, true, "rping", &verbs_at(ip, RPING));
    expect_good_end(&mut guest);
    guest.say("wait; cat asked");
    assert_eq!(guest.await_line("asked "), "asked 0");
}

/// The program in the guest listens for a peer that is no NIC.
fn listens_for_a_raw_peer(does: &str) -> Guest {
    let mut guest = Guest::new();
    let address = verbs_at(Family::Ipv4.there(), ROCE_PORT);
    start(&mut guest, true, does, &address);
    guest.await_line("listens");
    guest
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v27_a_peer_returns_with_the_same_number() {
    let guest = listens_for_a_raw_peer("attend");
    expect_good_end(&mut returned::returns(guest));
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v31_halves_of_messages_leave_the_shared_queue_its_room() {
    let guest = listens_for_a_raw_peer("halves");
    expect_good_end(&mut halves::sends_halves(guest));
}

/// Messages travel over TCP, and nobody listens at the device.
fn against_perftest(does: &str) {
    let mut guest = Guest::new();
    start(&mut guest, true, does, &verbs_at(Family::Ipv4.there(), 0));
    expect_good_end(&mut guest);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_ib_read_lat_reads_from_ibverbs() {
    against_perftest("is_read");
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_ib_write_bw_writes_to_ibverbs() {
    against_perftest("is_written");
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_ibverbs_writes_to_ib_write_bw() {
    against_perftest("writes");
}
