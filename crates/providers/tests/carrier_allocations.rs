//! No packet allocates.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod carrier_rig;

use carrier_rig::{Kind, Side, packet, transfer};
use legato_base::secret::{Keyring, Secret, SecureRandom};
use legato_providers::roce::carrier::{Options, Sealing};

fn exchange(a: &mut Side, b: &mut Side, bytes: &[u8]) -> usize {
    let to = b.address();
    for _ in 0..16 {
        assert!(a.send(to, bytes));
    }
    a.carrier.flush();
    let mut received = 0;
    while received < 16 {
        b.carrier.receive(&mut b.inbox);
        while let Some(packet) = b.inbox.next() {
            assert!(packet.packet == bytes);
            received += 1;
        }
    }
    received
}

/// Without a kind it is a sealed stream.
fn open(kind: Option<Kind>, host: &str) -> Side {
    let options = Options::default();
    let keys = Keyring::All(Secret::new([1; 32]));
    let sealing = Sealing::new(keys, SecureRandom::from_seed([1; 32]));
    match kind {
        Some(kind) => Side::open(kind, host, &options),
        None => Side::sealed(host, &options, sealing),
    }
}

#[test]
fn no_packet_allocates() {
    for kind in [Some(Kind::Datagram), Some(Kind::Stream), None] {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let mut a = open(kind, host);
            let mut b = open(kind, host);
            let bytes = packet(3, 4108);
            transfer(&mut a, &mut b, &vec![bytes.clone(); 64]);
            transfer(&mut b, &mut a, &vec![bytes.clone(); 64]);
            let seen = allocation_counter::measure(|| {
                for _ in 0..100 {
                    exchange(&mut a, &mut b, &bytes);
                    exchange(&mut b, &mut a, &bytes[..64]);
                }
            });
            assert_eq!(seen.count_total, 0, "{kind:?} {host}");
        }
    }
}
