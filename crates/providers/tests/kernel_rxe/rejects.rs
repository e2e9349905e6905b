//! V-22: who says no to the kernel's `rdma_cm`, and who is told so, with private data both ways.

use crate::rig::{Family, Rig, nic_at};
use legato_verbs::{ConnectionEvent, Provider as _, QueuePairState, RejectReason};

const PORT: u16 = 7176;

/// The kernel says no to this side.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_the_kernel_rejects_with_a_reason_of_its_users() {
    let mut rig = Rig::new();
    rig.guest.say(&format!("./refuser {PORT} no-room-here"));
    rig.await_line("waits");
    let queue_pair = rig.queue_pair();
    let there = nic_at(Family::Ipv4.there());
    rig.nic
        .connect_service(queue_pair, &there, PORT, b"may-I")
        .unwrap();
    assert_eq!(rig.await_line("asked "), "asked 0 may-I");
    let (reason, data) = rig.await_connection_event("rejected", |event| match event {
        ConnectionEvent::Rejected {
            reason,
            private_data,
            ..
        } => Some((*reason, private_data.clone())),
        _ => None,
    });
    assert_eq!(reason, RejectReason::ConsumerReject);
    assert_eq!(data, b"no-room-here");
    let state = rig.nic.query_queue_pair(queue_pair);
    assert_eq!(state, Ok(QueuePairState::Error));
    rig.await_line("over");
    rig.check_packets();
}

/// This side says no to the kernel, and the next one is asked as well.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_the_kernel_is_told_why_it_is_rejected() {
    let mut rig = Rig::new();
    let here = Family::Ipv4.here();
    rig.nic.listen_service(&nic_at(here), PORT).unwrap();
    for round in 0..3 {
        rig.guest
            .say(&format!("./refuser {PORT} may-I-{round} {here}"));
        let (request, data) = rig.await_connection_event("a request", |event| match event {
            ConnectionEvent::Requested {
                request,
                private_data,
                ..
            } => Some((*request, private_data.clone())),
            _ => None,
        });
        assert_eq!(data, format!("may-I-{round}").as_bytes());
        let said = format!("not-now-{round}");
        rig.nic.reject(request, said.as_bytes()).unwrap();
        // 28: the reason of whoever uses the connection manager (IB spec 12.6.7.2).
        assert_eq!(rig.await_line("rejected "), format!("rejected 28 {said}"));
        rig.await_line("over");
    }
    rig.check_packets();
}
