//! How connections begin and end, again and again.

use crate::bench::{Bench, FLUSHED, MILLISECOND, SENT, Setup};
use legato_base::{Duration, Time};
use legato_sim::fault::{Link, Rule};
use legato_sim::provider::Personality;
use legato_transport::cm::ManagerCounts;
use legato_verbs::{
    ConnectionEvent, Provider, QueuePairAttributes, QueuePairState, RejectReason, ResourceCounts,
};

fn disconnect(bench: &mut Bench) {
    let left = bench.left.queue_pair;
    bench.left.nic.disconnect(left).unwrap();
}

fn link(bench: &Bench, from: &str, to: &str) -> Link {
    let number = |name| bench.network.machine_number(name).unwrap();
    Link {
        from: number(from),
        to: number(to),
    }
}

/// Each end has its one ending event, and after it the end of the time-wait state.
fn both_have_ended(bench: &mut Bench) {
    for end in [&mut bench.left, &mut bench.right] {
        let queue_pair = end.queue_pair;
        let expected = [
            ConnectionEvent::Disconnected { queue_pair },
            ConnectionEvent::TimeWaitExit { queue_pair },
        ];
        assert_eq!(end.connection_events(), expected);
        assert_eq!(end.nic.manager_counts(), ManagerCounts::default());
        assert_eq!(end.nic.numbers_in_use(), 1);
    }
}

#[test]
fn v_24_ten_thousand_cycles_leave_nothing() {
    for personality in [Personality::IDEAL, Personality::RXE] {
        let setup = Setup::new(personality);
        let mut bench = Bench::unconnected(setup);
        let mut counts: Option<[ResourceCounts; 2]> = None;
        for cycle in 0..10_000 {
            bench.manage("port");
            bench.right.receive(1, 64);
            bench.left.send(2, 16);
            while bench.left.polled().is_empty() {
                bench.step();
            }
            assert_eq!(bench.right.polled().len(), 1);
            disconnect(&mut bench);
            bench.run();
            both_have_ended(&mut bench);
            for end in [&mut bench.left, &mut bench.right] {
                end.events().clear();
                end.nic.destroy_queue_pair(end.queue_pair).unwrap();
                assert_eq!(end.nic.numbers_in_use(), 0);
                end.queue_pair = end.another(&setup).unwrap();
            }
            let now = [&bench.left, &bench.right].map(|end| end.nic.resource_counts());
            assert_eq!(*counts.get_or_insert(now), now, "cycle {cycle}");
        }
    }
}

/// A queue pair that has left the time-wait state can be connected again, and not before.
#[test]
fn v_24_the_same_queue_pairs_are_connected_again() {
    let setup = Setup::new(Personality::IDEAL);
    let mut bench = Bench::managed(setup);
    for _ in 0..3 {
        disconnect(&mut bench);
        bench.run_for(MILLISECOND);
        for end in [&mut bench.left, &mut bench.right] {
            let none = QueuePairAttributes::NONE;
            let to = QueuePairState::Reset;
            end.nic
                .modify_queue_pair(end.queue_pair, to, &none)
                .unwrap();
            end.enter_init(&setup);
        }
        let address = legato_verbs::Address::Sim("elsewhere".to_owned());
        let left = bench.left.queue_pair;
        let early = bench.left.nic.connect(left, &address, &[]);
        assert_eq!(early, Err(legato_verbs::VerbsError::Busy("queue pair")));
        bench.run();
        bench.left.events().clear();
        bench.right.events().clear();
        bench.manage("port");
        bench.right.receive(1, 64);
        bench.left.send(2, 16);
        bench.run_for(MILLISECOND);
        assert_eq!(bench.left.polled(), [(2, SENT)]);
        bench.right.polled();
    }
}

#[test]
fn v_27_a_peer_that_returns_with_its_old_number() {
    // Numbers of every incarnation begin at the same one.
    for personality in [
        Personality::RXE,
        Personality {
            first_number: Some(40),
            ..Personality::IDEAL
        },
    ] {
        let setup = Setup::new(personality);
        let mut bench = Bench::managed(setup);
        bench.right.receive(1, 64);
        let number = bench.left.nic.queue_pair_number(bench.left.queue_pair);
        bench.left.send(5, 16);
        let fresh = bench.network.restart("left");
        let back = bench.network.now();
        let mut again = Bench {
            left: crate::bench::End::on(fresh, &setup),
            right: crate::bench::End::on(bench.network.provider("right"), &setup),
            network: bench.network.clone(),
            setup,
        };
        let left = again.left.queue_pair;
        assert_eq!(again.left.nic.queue_pair_number(left), number);
        // The first request finds the connection of before, and ends it.
        let address = legato_verbs::Address::Sim("again".to_owned());
        let listener = again.right.nic.listen(&address).unwrap();
        again.left.enter_init(&setup);
        again.left.nic.connect(left, &address, &[]).unwrap();
        again.run_for(MILLISECOND);
        let stale = ConnectionEvent::Rejected {
            queue_pair: left,
            reason: RejectReason::StaleConnection,
            private_data: Vec::new(),
        };
        assert_eq!(again.left.connection_events()[0], stale);
        let old = bench.right.queue_pair;
        let over = ConnectionEvent::Disconnected { queue_pair: old };
        assert!(again.right.connection_events().contains(&over));
        let flushed: Vec<_> = bench.right.polled();
        assert_eq!(flushed, [(1, FLUSHED)]);
        again.right.nic.close_listener(listener).unwrap();
        // The next one is taken, with the same number.
        again.left.nic.destroy_queue_pair(left).unwrap();
        again.left.queue_pair = again.left.another(&setup).unwrap();
        again.left.events().clear();
        again.right.events().clear();
        again.manage("again");
        assert!(again.network.now().since(back) < Duration::from_secs(1));
        again.right.receive(2, 64);
        again.left.send(3, 16);
        again.run_for(MILLISECOND);
        assert_eq!(again.left.polled(), [(3, SENT)]);
        assert_eq!(bench.right.polled(), []);
    }
}

#[test]
fn v_34_the_disconnect_request_is_lost() {
    for personality in Personality::ALL {
        let mut bench = Bench::managed(Setup::new(personality));
        let way = link(&bench, "left", "right");
        let now = bench.network.now();
        let lost = Rule::one_way_cut(way).between(now, now + Duration::from_secs(1));
        bench.network.faults(|faults| faults.add(lost));
        disconnect(&mut bench);
        bench.run_for(Duration::from_secs(4));
        assert_eq!(bench.right.connection_events(), []);
        // It is sent again after 4.6 s.
        bench.run_for(Duration::from_secs(1));
        assert_eq!(bench.right.connection_events().len(), 1);
        bench.run();
        both_have_ended(&mut bench);
    }
}

#[test]
fn v_34_the_disconnect_reply_is_lost() {
    for personality in Personality::ALL {
        let mut bench = Bench::managed(Setup::new(personality));
        let way = link(&bench, "right", "left");
        let now = bench.network.now();
        let lost = Rule::one_way_cut(way).between(now, now + Duration::from_secs(1));
        bench.network.faults(|faults| faults.add(lost));
        disconnect(&mut bench);
        bench.run_for(MILLISECOND);
        assert_eq!(bench.right.connection_events().len(), 1);
        bench.run();
        both_have_ended(&mut bench);
    }
}

#[test]
fn v_34_nobody_answers_the_disconnect_request() {
    let mut bench = Bench::managed(Setup::new(Personality::IDEAL));
    let way = link(&bench, "left", "right");
    bench
        .network
        .faults(|faults| faults.add(Rule::one_way_cut(way)));
    let start = bench.network.now();
    disconnect(&mut bench);
    let left = bench.left.queue_pair;
    bench.run();
    // 16 messages, each 4.6 s, and the time-wait state.
    let took = bench.network.now().since(start);
    assert!(took >= Duration::from_secs(74), "{took}");
    assert!(took < Duration::from_secs(76), "{took}");
    let expected = [
        ConnectionEvent::Disconnected { queue_pair: left },
        ConnectionEvent::TimeWaitExit { queue_pair: left },
    ];
    assert_eq!(bench.left.connection_events(), expected);
    // The other side has heard nothing, and goes on believing.
    assert_eq!(bench.right.state(), QueuePairState::ReadyToSend);
}

#[test]
fn v_34_both_sides_disconnect_at_once() {
    for personality in Personality::ALL {
        let mut bench = Bench::managed(Setup::new(personality));
        disconnect(&mut bench);
        let right = bench.right.queue_pair;
        bench.right.nic.disconnect(right).unwrap();
        bench.run();
        both_have_ended(&mut bench);
    }
}

/// A disconnect request for a connection that is forgotten is answered.
#[test]
fn v_34_a_request_for_an_unknown_connection_is_answered() {
    let mut bench = Bench::managed(Setup::new(Personality::IDEAL));
    bench.network.restart("right");
    let start = bench.network.now();
    disconnect(&mut bench);
    while bench.left.connection_events().is_empty() {
        bench.step();
    }
    assert!(bench.network.now().since(start) < MILLISECOND);
}

#[test]
fn v_34_a_number_is_out_of_use_until_the_time_wait_state_ends() {
    for personality in [Personality::MLX5, Personality::RXE, Personality::HOSTILE] {
        let setup = Setup::new(personality);
        let mut bench = Bench::managed(setup);
        let left = bench.left.queue_pair;
        let number = bench.left.nic.queue_pair_number(left);
        bench.left.nic.destroy_queue_pair(left).unwrap();
        let early = bench.left.another(&setup).unwrap();
        assert_ne!(bench.left.nic.queue_pair_number(early), number);
        bench.left.nic.destroy_queue_pair(early).unwrap();
        bench.run();
        let reused = (0..2).any(|_| {
            let wide = Setup {
                capabilities: legato_verbs::QueuePairCapabilities {
                    send_requests_max: 1,
                    receive_requests_max: 1,
                    entries_max: 1,
                },
                ..setup
            };
            let late = bench.left.another(&wide).unwrap();
            bench.left.nic.queue_pair_number(late) == number
        });
        assert!(reused, "{}", personality.name);
    }
}

/// iWARP devices were seen to leave a queue pair ready to send after a disconnect.
#[test]
fn a_device_that_keeps_the_state_after_a_disconnect() {
    let mut bench = Bench::managed(Setup::new(Personality::IWARP));
    bench.left.receive(1, 64);
    disconnect(&mut bench);
    bench.run_for(MILLISECOND);
    assert_eq!(bench.left.state(), QueuePairState::ReadyToSend);
    assert_eq!(bench.left.polled(), []);
    assert_eq!(bench.right.state(), QueuePairState::Error);
    bench.left.enter_error();
    assert_eq!(bench.left.polled(), [(1, FLUSHED)]);
    assert!(bench.network.now() > Time::ZERO);
}
