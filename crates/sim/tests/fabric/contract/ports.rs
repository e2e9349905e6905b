//! Devices, ports and addresses that fail under work.

use crate::rig::{MILLISECOND, Plan, SECOND, World, config, quiet};
use legato_base::Duration;
use legato_fabric::{Cause, ConnectionId, Effect, FabricConfig, Proof, ResetCause};
use legato_sim::fault::{self, EventEffect, Events, Frequency, Rule, Scope};
use legato_sim::provider::{Personality, SimNetwork};
use legato_verbs::{AsyncEvent, CompletionStatus, ConnectionEvent, Event, VerbsError};

/// A read, a write and a call are under way when something becomes of the device or port: all fail
/// with this cause within 100 ms, also where nothing is flushed, and their buffers are back.
fn all_fail(world: &mut World<SimNetwork>, here: ConnectionId, cause: ResetCause, name: &str) {
    world.run_for(Duration::from_millis(100));
    let reset = Cause::Reset(cause);
    let outcomes = world.left.outcomes();
    assert_eq!(outcomes.len(), 2, "{name}");
    for (_, outcome) in outcomes {
        assert_eq!(outcome, Err((reset, Effect::Unknown)), "{name}");
    }
    let replies = world.left.replies();
    assert_eq!(replies.len(), 1, "{name}");
    assert_eq!(replies[0].1, Err(reset), "{name}");
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.left.quiesced().len(), 2, "{name}");
    assert_eq!(world.left.disconnected(), [here], "{name}");
}

fn under_way(personality: Personality) -> (World<SimNetwork>, ConnectionId) {
    let mut world = World::new(Plan {
        network: quiet(),
        ..Plan::both(personality.attentive())
    });
    let (here, _) = world.connect();
    world.freeze_right();
    world.read(here, 1, Duration::from_secs(60)).unwrap();
    world.write(here, 2, Duration::from_secs(60)).unwrap();
    world.call(here, b"?", Duration::from_secs(60));
    world.run_for(MILLISECOND);
    (world, here)
}

/// As [`under_way`], where a port has 100 ms to come back: less than all retries of a NIC take.
fn under_way_with_patience(personality: Personality) -> (World<SimNetwork>, ConnectionId) {
    let mut world = World::new(Plan {
        network: quiet(),
        config: FabricConfig {
            outage: Duration::from_millis(100),
            ..config()
        },
        ..Plan::both(personality.attentive())
    });
    let (here, _) = world.connect();
    world.freeze_right();
    world.read(here, 1, Duration::from_secs(60)).unwrap();
    world.run_for(MILLISECOND);
    (world, here)
}

fn recovers(world: &mut World<SimNetwork>) {
    world.network.unfreeze("right");
    world.right.paused = false;
    world.run_for(Duration::from_secs(13));
    world.works_again_and_ends();
}

// P-56, P-90
#[test]
fn v_39_the_port_goes_down_and_comes_back() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        world.network.set_link("left", false);
        all_fail(&mut world, here, ResetCause::PortDown, personality.name);
        world.network.set_link("left", true);
        recovers(&mut world);
    }
}

fn address_removed(world: &World<SimNetwork>) -> Event {
    let queue_pair = world.left.nic.last_queue_pair.unwrap();
    Event::Connection(ConnectionEvent::AddressRemoved { queue_pair })
}

// P-56
#[test]
fn v_39_an_address_is_gone() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        let removed = address_removed(&world);
        world.left.nic.inject.push_back(removed);
        let cause = ResetCause::AddressRemoved;
        all_fail(&mut world, here, cause, personality.name);
        recovers(&mut world);
    }
}

fn address_returned(world: &World<SimNetwork>) -> Event {
    let queue_pair = world.left.nic.last_queue_pair.unwrap();
    Event::Connection(ConnectionEvent::AddressReturned { queue_pair })
}

/// One operation has ended so, and these connections are over soon.
fn one_ends(
    world: &mut World<SimNetwork>,
    expected: Result<(), (Cause, Effect)>,
    over: &[ConnectionId],
) {
    let outcomes = world.left.outcomes();
    assert_eq!(outcomes.len(), 1);
    assert_eq!(outcomes[0].1, expected);
    world.run_for(SECOND);
    assert_eq!(world.left.disconnected(), over);
}

// P-56
#[test]
fn v_39_what_is_under_way_waits_for_a_port_or_an_address_that_may_come_back() {
    let port_error = Event::Async(AsyncEvent::PortError(1));
    let port_active = Event::Async(AsyncEvent::PortActive(1));
    for personality in Personality::ALL {
        for comes_back in [true, false] {
            let (mut world, here) = under_way_with_patience(personality);
            // Told again, it has no more time.
            for event in [
                port_error.clone(),
                address_removed(&world),
                port_error.clone(),
            ] {
                world.left.nic.inject.push_back(event);
                world.run_for(Duration::from_millis(30));
            }
            if comes_back {
                let returned = [address_returned(&world), port_active.clone()];
                world.left.nic.inject.extend(returned);
                world.run_for(MILLISECOND);
            }
            assert!(world.left.outcomes().is_empty(), "{}", personality.name);
            world.run_for(Duration::from_millis(20));
            let expected = match comes_back {
                true => {
                    world.network.unfreeze("right");
                    world.right.paused = false;
                    world.run_for(SECOND);
                    Ok(())
                }
                false => {
                    world.run_for(Duration::from_millis(60));
                    Err((Cause::Reset(ResetCause::PortDown), Effect::Unknown))
                }
            };
            let ended: &[ConnectionId] = if comes_back { &[] } else { &[here] };
            one_ends(&mut world, expected, ended);
        }
    }
}

/// Lost: whatever came back began the wait anew, so that a link that went up and down kept a connection for ever
/// whose own address was gone.
// P-56
#[test]
fn v_39_what_comes_back_ends_no_wait_for_what_does_not() {
    let port_error = Event::Async(AsyncEvent::PortError(1));
    let port_active = Event::Async(AsyncEvent::PortActive(1));
    for personality in Personality::ALL {
        let (mut world, here) = under_way_with_patience(personality);
        let removed = address_removed(&world);
        world.left.nic.inject.push_back(removed.clone());
        for _ in 0..4 {
            let flaps = [port_error.clone(), port_active.clone(), removed.clone()];
            world.left.nic.inject.extend(flaps);
            world.run_for(Duration::from_millis(24));
        }
        assert!(world.left.outcomes().is_empty(), "{}", personality.name);
        world.run_for(Duration::from_millis(80));
        let cause = Cause::Reset(ResetCause::AddressRemoved);
        one_ends(&mut world, Err((cause, Effect::Unknown)), &[here]);
    }
}

/// Both are missing at the same time, and one of them is back.
// P-56
#[test]
fn v_39_a_wait_goes_on_for_the_second_thing_that_is_missing() {
    let port_error = Event::Async(AsyncEvent::PortError(1));
    let port_active = Event::Async(AsyncEvent::PortActive(1));
    for personality in Personality::ALL {
        let (mut world, here) = under_way_with_patience(personality);
        let removed = address_removed(&world);
        let events = [port_error.clone(), removed, port_active.clone()];
        world.left.nic.inject.extend(events);
        world.run_for(Duration::from_millis(99));
        assert!(world.left.outcomes().is_empty(), "{}", personality.name);
        world.run_for(Duration::from_millis(80));
        let cause = Cause::Reset(ResetCause::AddressRemoved);
        one_ends(&mut world, Err((cause, Effect::Unknown)), &[here]);
    }
}

/// Lost: an address that was added to a node's device ended the connections of all programs.
// P-56
#[test]
fn v_39_other_addresses_of_the_port_change_and_nothing_ends() {
    for personality in Personality::ALL {
        let (mut world, _) = under_way(personality);
        world.network.raise("left", AsyncEvent::AddressChange(1));
        world.run_for(Duration::from_millis(100));
        assert!(world.left.outcomes().is_empty(), "{}", personality.name);
        world.network.unfreeze("right");
        world.right.paused = false;
        world.run_for(SECOND);
        let outcomes = world.left.outcomes();
        assert_eq!(outcomes.len(), 2, "{}", personality.name);
        assert!(outcomes.iter().all(|(_, outcome)| outcome.is_ok()));
        assert_eq!(world.left.disconnected(), [], "{}", personality.name);
        assert_eq!(world.left.fabric.counters().address_changes, 1);
    }
}

/// The link goes down, or its address goes, and nothing says so: what is under way ends when the peer's
/// silence has lasted long enough, and nobody connects. Then the address is at another port, which is said.
#[test]
fn l_43_a_link_that_is_gone_unannounced_and_an_address_that_moves() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        world.network.unfreeze("right");
        let left = world.network.machine_number("left").unwrap();
        let effect = fault::Effect::Event {
            of: Events::Asynchronous,
            effect: EventEffect::Lose,
        };
        let unsaid = Rule::new(Frequency::Always, effect).within(Scope::Machine(left));
        let unsaid = world.network.faults(|faults| faults.add(unsaid));
        world.network.set_link("left", false);
        world.run_for(Duration::from_secs(13));
        assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
        assert_eq!(world.left.outcomes().len(), 2);
        assert_eq!(world.left.replies().len(), 1);
        assert_eq!(world.left.quiesced().len(), 2);
        world.left.events.clear();
        world.try_connect(SECOND).unwrap();
        world.run_for(SECOND + MILLISECOND);
        let failed = world.left.failed_connects();
        assert_eq!(failed.len(), 1, "{}", personality.name);
        world.network.faults(|faults| faults.end(unsaid));
        world.network.set_link("left", true);
        world.network.raise("left", AsyncEvent::AddressChange(1));
        recovers(&mut world);
    }
}

/// Lost: the peer was blamed for what this side's NIC had done, because that a connection is over is told first.
// P-54
#[test]
fn v_29_who_has_ended_a_connection_may_be_told_after_its_end() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        let queue_pair = world.left.nic.last_queue_pair.unwrap();
        let over = Event::Connection(ConnectionEvent::Disconnected { queue_pair });
        let fatal = Event::Async(AsyncEvent::QueuePairFatal(queue_pair));
        world.left.nic.inject.extend([over, fatal]);
        all_fail(
            &mut world,
            here,
            ResetCause::QueuePairFatal,
            personality.name,
        );
        recovers(&mut world);
    }
}

/// The same of a completion.
#[test]
fn v_29_a_completion_that_is_polled_after_the_end_may_tell_why() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        let queue_pair = world.left.nic.last_queue_pair.unwrap();
        world.left.nic.hold_completions = true;
        world.run_for(Duration::from_secs(8));
        let over = Event::Connection(ConnectionEvent::Disconnected { queue_pair });
        world.left.nic.inject.push_back(over);
        world.run_for(MILLISECOND);
        world.left.nic.hold_completions = false;
        world.run_for(SECOND);
        let cause = world.left.fabric.reset_cause(here);
        let expected = ResetCause::Transport(CompletionStatus::RetryExceeded);
        assert_eq!(cause, Some(expected), "{}", personality.name);
        recovers(&mut world);
    }
}

/// P-56: the device is gone: no completion comes any more, and nothing is refused for ever.
#[test]
fn l_40_l_41_v_39_the_device_is_removed() {
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        world.left.nic.hold_completions = true;
        world.network.remove_device("left");
        world.run_for(Duration::from_secs(2));
        let outcomes = world.left.outcomes();
        assert_eq!(outcomes.len(), 2, "{}", personality.name);
        let quiesced = world.left.quiesced();
        assert_eq!(quiesced.len(), 2, "{}", personality.name);
        for (_, _, proof) in quiesced {
            assert_eq!(proof, Proof::QueuePairDestroyed, "{}", personality.name);
        }
        assert_eq!(world.left.replies().len(), 1);
        assert_eq!(world.left.disconnected(), [here]);
        let cause = world.left.fabric.reset_cause(here);
        assert_eq!(cause, Some(ResetCause::DeviceRemoved));
        // Everything can be destroyed.
        world.left.end();
    }
}

/// P-58. Lost: that it is to be removed, or has failed, was taken for its end, and buffers came back while it could
/// still touch them.
#[test]
fn l_40_a_device_that_says_that_it_is_gone_is_waited_for() {
    const EIO: VerbsError = VerbsError::System {
        call: "destroy",
        errno: 5,
    };
    for personality in Personality::ALL {
        let (mut world, here) = under_way(personality);
        world.left.nic.hold_completions = true;
        world.left.nic.refuse_destroys = Some(EIO);
        let fatal = Event::Async(AsyncEvent::DeviceFatal);
        world.left.nic.inject.push_back(fatal);
        world.run_for(Duration::from_secs(3));
        let name = personality.name;
        assert_eq!(world.left.disconnected(), [here], "{name}");
        assert_eq!(world.left.outcomes().len(), 2, "{name}");
        assert_eq!(world.left.quiesced(), [], "{name}");
        assert_eq!(world.left.fabric.quarantine().operations, 2, "{name}");
        world.left.nic.refuse_destroys = None;
        world.left.nic.hold_completions = false;
        world.run_for(Duration::from_secs(3));
        let quiesced = world.left.quiesced();
        assert_eq!(quiesced.len(), 2, "{name}");
        for (_, _, proof) in quiesced {
            assert_eq!(proof, Proof::QueuePairDestroyed, "{name}");
        }
        world.left.end();
    }
}
