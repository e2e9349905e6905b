//! Services of other numbers than their UDP port, as `rdma_cm` has them.

use legato_base::{Duration, Time};
use legato_providers::RoceProvider;
use legato_verbs::{
    Address, ConnectionEvent, Event, Provider, QueuePair, QueuePairAttributes,
    QueuePairCapabilities, QueuePairInit, QueuePairState, RejectReason, VerbsError,
};
use std::time::Instant;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

fn address(text: &str) -> Address {
    Address::Roce(text.parse().unwrap())
}

fn queue_pair(nic: &mut RoceProvider) -> QueuePair {
    let domain = nic.create_protection_domain().unwrap();
    let queue = nic.create_completion_queue(8).unwrap();
    let capabilities = QueuePairCapabilities {
        send_requests_max: 2,
        receive_requests_max: 2,
        entries_max: 1,
    };
    let init = QueuePairInit::new(domain, queue, capabilities);
    let queue_pair = nic.create_queue_pair(&init).unwrap();
    let state = QueuePairState::Init;
    nic.modify_queue_pair(queue_pair, state, &QueuePairAttributes::INIT)
        .unwrap();
    queue_pair
}

/// The next event of the first.
fn await_event(nic: &mut RoceProvider, other: &mut RoceProvider, begun: Instant) -> Event {
    loop {
        let nanos = begun.elapsed().as_nanos() as u64;
        let now = Time::ZERO + Duration::from_nanos(nanos + 1);
        nic.progress(now);
        other.progress(now);
        match nic.poll_event() {
            // Of a queue pair before.
            None | Some(Event::Connection(ConnectionEvent::TimeWaitExit { .. })) => {}
            Some(event) => return event,
        }
        assert!(begun.elapsed() < PATIENCE, "no event");
    }
}

#[test]
fn v22_a_nic_has_many_services_at_one_udp_port() {
    let begun = Instant::now();
    let place = address("127.0.0.41:4791");
    let mut server = RoceProvider::open(&place).unwrap();
    let mut client = RoceProvider::open(&address("127.0.0.40:4791")).unwrap();
    let listeners = [7174, 7175].map(|service| server.listen_service(&place, service).unwrap());
    let again = server.listen_service(&place, 7174);
    assert_eq!(again, Err(VerbsError::AddressInUse));
    let nameless = server.listen_service(&place, 0);
    assert_eq!(nameless, Err(VerbsError::UnsupportedAddress));
    for (service, listener) in [(7175, listeners[1]), (7174, listeners[0])] {
        let own = queue_pair(&mut client);
        client.connect_service(own, &place, service, b"hi").unwrap();
        let Event::Connection(ConnectionEvent::Requested {
            listener: asked,
            private_data,
            ..
        }) = await_event(&mut server, &mut client, begun)
        else {
            panic!("no request");
        };
        assert_eq!((asked, &private_data[..]), (listener, &b"hi"[..]));
    }
}

/// The port's own number is no service by itself.
#[test]
fn v22_a_service_that_nobody_offers_is_refused() {
    let begun = Instant::now();
    let place = address("127.0.0.9:4791");
    let mut server = RoceProvider::open(&place).unwrap();
    let mut client = RoceProvider::open(&address("127.0.0.8:4791")).unwrap();
    server.listen_service(&place, 7174).unwrap();
    for service in [7175, 4791] {
        let own = queue_pair(&mut client);
        client.connect_service(own, &place, service, b"").unwrap();
        let event = await_event(&mut client, &mut server, begun);
        let Event::Connection(ConnectionEvent::Rejected { reason, .. }) = event else {
            panic!("{event:?}");
        };
        assert_eq!(reason, RejectReason::InvalidServiceId);
    }
}
