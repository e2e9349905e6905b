//! V-21: what the kernel's NIC has counted (`hw_counters` of Linux 6.12's `rdma_rxe`), against what this
//! side has.

use crate::rig::Rig;
use legato_providers::RoceProvider;
use std::collections::BTreeMap;

const DIRECTORY: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
/// Count what is part of any traffic: packets, messages, acknowledgements that are put off, and answers
/// that a receive is missing.
const ORDINARY: [&str; 8] = [
    "ack_deferred",
    "rcvd_pkts",
    "rcvd_rnr_err",
    "rdma_recvs",
    "rdma_sends",
    "send_rnr_err",
    "sent_pkts",
    "lifespan",
];

/// Of both NICs at a time.
#[derive(Debug)]
pub(crate) struct Counted {
    there: BTreeMap<String, u64>,
    sent: u64,
    received: u64,
    /// Packets that were sent again, gaps and timers.
    repetitions: u64,
}

impl Rig<RoceProvider> {
    pub(crate) fn count(&mut self) -> Counted {
        self.guest.say(&format!(
            "cd {DIRECTORY}; for name in *; do echo counter $name $(cat $name); done; cd - >/dev/null; echo counted"
        ));
        self.await_line("counted");
        let mut there = BTreeMap::new();
        while let Some(line) = self.guest.take("counter ") {
            let mut words = line.split(' ').skip(1);
            let name = words.next().unwrap().to_owned();
            there.insert(name, words.next().unwrap().parse().unwrap());
        }
        let ours = self.nic.counters();
        let paths = self.nic.congestion_counters();
        Counted {
            there,
            sent: ours.packets_sent - ours.dropped_by_device,
            received: ours.packets_received,
            repetitions: paths.resends + paths.losses + paths.timeouts,
        }
    }

    /// Every packet since then has arrived, and the kernel has refused none: or something was sent again,
    /// which explains as many.
    pub(crate) fn check_counted(&mut self, before: &Counted) {
        let after = self.count();
        let since = |name: &str| after.there[name] - before.there[name];
        let lost_there = (after.sent - before.sent) - since("rcvd_pkts");
        let lost_here = since("sent_pkts") - (after.received - before.received);
        let names = after.there.keys().map(String::as_str);
        let unusual: BTreeMap<_, _> = names
            .filter(|name| !ORDINARY.contains(name))
            .map(|name| (name, since(name)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let explained = after.repetitions - before.repetitions;
        println!(
            "  {} packets to the kernel and {} from it: {lost_there} and {lost_here} did not arrive, \
             {explained} repetitions, {unusual:?}",
            after.sent - before.sent,
            since("sent_pkts"),
        );
        assert!(since("rcvd_pkts") > 0);
        let drops = lost_there + lost_here + unusual.values().sum::<u64>();
        assert!(drops == 0 || explained > 0, "drops that nothing explains");
    }
}
