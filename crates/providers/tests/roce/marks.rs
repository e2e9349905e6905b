//! Marks of routers on packets (ECN), from the sockets to what the NICs say about them.

use crate::rig::Rig;
use legato_base::Duration;
use legato_providers::roce::carrier::Options;

/// "Congestion experienced" (RFC 3168, 5).
const EXPERIENCED: u8 = 3;
const LENGTH: u32 = 32 << 10;

/// A connection with a WRITE and a READ over a relay whose packets have this traffic class.
fn carried(net: u8, traffic_class: u8) -> Rig {
    let options = Options {
        traffic_class,
        ..Options::default()
    };
    let mut rig = Rig::with(net, &options);
    let (client, _, connected) = rig.connect();
    assert!(connected);
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    assert!(rig.moves(client, &bytes, Duration::from_secs(5)));
    // What is under way still arrives.
    rig.run(Duration::from_millis(1), |_| false);
    rig
}

#[test]
fn a_marked_packet_is_answered_by_a_notification() {
    let rig = carried(60, EXPERIENCED);
    let near = rig.client.provider.congestion_counters();
    let far = rig.server.provider.congestion_counters();
    // Eight packets of the WRITE at one side, eight of the READ's answer at the other.
    assert!(
        far.marks_seen >= 8 && near.marks_seen >= 8,
        "{near:?} {far:?}"
    );
    assert!(far.notifications_sent > 0 && near.notifications_sent > 0);
    assert_eq!(near.notifications_received, far.notifications_sent);
    assert_eq!(far.notifications_received, near.notifications_sent);
    assert_eq!((near.resends, near.timeouts), (0, 0));
}

#[test]
fn a_packet_without_a_mark_is_not() {
    for (net, class) in [(61, 0), (62, 2)] {
        let rig = carried(net, class);
        for node in [&rig.client, &rig.server] {
            let counters = node.provider.congestion_counters();
            assert_eq!(counters.marks_seen, 0);
            assert_eq!(counters.notifications_sent, 0);
        }
    }
}
