//! Which calls each state of a queue pair allows.

use super::expect::{equal, must, pattern, refused, send};
use super::session::{Checked, End, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    CompletionKind, CompletionStatus, PRIVATE_DATA_MAX, QueuePairState, ReceiveRequest, VerbsError,
    WorkRequestId,
};
use alloc::vec;
use core::fmt::Debug;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-1 state table before a connection",
        check: states_before_connection,
    },
    Rule {
        name: "V-1 state table with a connection",
        check: states_with_connection,
    },
    Rule {
        name: "V-1 refused connects and accepts change nothing",
        check: refused_connects_change_nothing,
    },
    Rule {
        name: "V-2 posting by state",
        check: posting_by_state,
    },
];

fn invalid_state<T: Debug>(what: &str, result: &Result<T, VerbsError>) -> Checked {
    refused(
        what,
        result,
        |error| matches!(error, VerbsError::InvalidState(_)),
        "InvalidState",
    )
}

/// Calls that are refused in every state but the named one leave the state as it is.
fn refuses_connection_calls(
    session: &mut Session<'_>,
    end: &End,
    state: QueuePairState,
) -> Checked {
    let address = session.world.fresh_address(Side::Right);
    let provider = session.on(end.side);
    if state != QueuePairState::Init {
        let connected = provider.connect(end.queue_pair, &address, &[]);
        invalid_state("connect outside Init", &connected)?;
    }
    if !matches!(state, QueuePairState::Reset | QueuePairState::Init) {
        let modified = provider.modify_to_init(end.queue_pair);
        invalid_state("modify to Init outside Reset", &modified)?;
    }
    if state != QueuePairState::ReadyToSend {
        let disconnected = provider.disconnect(end.queue_pair);
        invalid_state("disconnect without a connection", &disconnected)?;
    }
    session.state_is(end, state)
}

fn states_before_connection(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let end = session.end_in_reset(Side::Left, SMALL)?;
    session.state_is(&end, QueuePairState::Reset)?;
    refuses_connection_calls(&mut session, &end, QueuePairState::Reset)?;
    let modified = session.on(end.side).modify_to_error(end.queue_pair);
    invalid_state("modify to Error in Reset", &modified)?;
    session.state_is(&end, QueuePairState::Reset)?;

    let modified = session.on(end.side).modify_to_init(end.queue_pair);
    must("modify to Init in Reset", modified)?;
    session.state_is(&end, QueuePairState::Init)?;
    refuses_connection_calls(&mut session, &end, QueuePairState::Init)?;

    for what in ["modify to Error in Init", "modify to Error in Error"] {
        must(what, session.on(end.side).modify_to_error(end.queue_pair))?;
        session.state_is(&end, QueuePairState::Error)?;
    }
    refuses_connection_calls(&mut session, &end, QueuePairState::Error)?;
    session.dismantle(end)
}

fn states_with_connection(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for end in [&left, &right] {
        refuses_connection_calls(&mut session, end, QueuePairState::ReadyToSend)?;
    }
    session.exchange(&left, &right)?;
    must(
        "modify to Error in ReadyToSend",
        session.on(left.side).modify_to_error(left.queue_pair),
    )?;
    session.state_is(&left, QueuePairState::Error)?;
    session.disconnected(&right)?;
    session.state_is(&right, QueuePairState::Error)?;
    for end in [&left, &right] {
        refuses_connection_calls(&mut session, end, QueuePairState::Error)?;
    }
    session.dismantle(left)?;
    session.dismantle(right)
}

fn refused_connects_change_nothing(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let address = session.world.fresh_address(Side::Right);
    let left = session.end(Side::Left, SMALL)?;
    let right = session.end(Side::Right, SMALL)?;
    let unready = session.end_in_reset(Side::Right, SMALL)?;
    let listener = must("listen", session.on(Side::Right).listen(&address))?;
    let twice = session.on(Side::Right).listen(&address);
    equal(
        "listen at a used address",
        &Err(VerbsError::AddressInUse),
        &twice,
    )?;

    let too_long = pattern(1, PRIVATE_DATA_MAX + 1);
    let over_limit = |error: &VerbsError| matches!(error, VerbsError::LimitExceeded { .. });
    let connected = session
        .on(Side::Left)
        .connect(left.queue_pair, &address, &too_long);
    refused(
        "connect with too much private data",
        &connected,
        over_limit,
        "LimitExceeded",
    )?;
    session.state_is(&left, QueuePairState::Init)?;
    let connected = session
        .on(Side::Left)
        .connect(left.queue_pair, &address, &[]);
    must("connect", connected)?;
    let (request, _) = session.requested(listener)?;

    let accepted = session
        .on(Side::Right)
        .accept(request, unready.queue_pair, &[]);
    invalid_state("accept with a queue pair in Reset", &accepted)?;
    session.state_is(&unready, QueuePairState::Reset)?;
    let accepted = session
        .on(Side::Right)
        .accept(request, right.queue_pair, &too_long);
    refused(
        "accept with too much private data",
        &accepted,
        over_limit,
        "LimitExceeded",
    )?;
    session.state_is(&right, QueuePairState::Init)?;

    let accepted = session
        .on(Side::Right)
        .accept(request, right.queue_pair, &[]);
    must("accept after two refusals", accepted)?;
    session.established(&left)?;
    session.established(&right)?;
    let again = session
        .on(Side::Right)
        .accept(request, unready.queue_pair, &[]);
    equal("accept a request twice", &Err(()), &again.map_err(|_| ()))?;
    session.exchange(&left, &right)
}

fn posting_by_state(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let left = session.end_in_reset(Side::Left, SMALL)?;
    let request = send(1, vec![left.region.entry(0, 8)]);
    let receive = |wr_id| ReceiveRequest {
        wr_id: WorkRequestId(wr_id),
        entries: vec![left.region.entry(64, 8)],
    };
    let provider = session.on(Side::Left);
    let posted = provider.post_send(left.queue_pair, &request);
    invalid_state("post a send in Reset", &posted)?;
    let posted = provider.post_receive(left.queue_pair, &receive(2));
    invalid_state("post a receive in Reset", &posted)?;
    must("modify to Init", provider.modify_to_init(left.queue_pair))?;
    let posted = provider.post_send(left.queue_pair, &request);
    invalid_state("post a send in Init", &posted)?;
    let posted = provider.post_receive(left.queue_pair, &receive(3));
    must("post a receive in Init", posted)?;

    let right = session.end(Side::Right, SMALL)?;
    let address = session.world.fresh_address(Side::Right);
    let listener = must("listen", session.on(Side::Right).listen(&address))?;
    let connected = session
        .on(Side::Left)
        .connect(left.queue_pair, &address, &[]);
    must("connect", connected)?;
    let (request, _) = session.requested(listener)?;
    let accepted = session
        .on(Side::Right)
        .accept(request, right.queue_pair, &[]);
    must("accept", accepted)?;
    session.established(&left)?;
    session.established(&right)?;

    session.post_send(&right, &send(4, vec![right.region.entry(0, 8)]))?;
    session.completes(&right, &[(4, Ok(CompletionKind::Send))])?;
    session.completes(&left, &[(3, Ok(CompletionKind::Receive { length: 8 }))])?;
    let modified = session.on(Side::Left).modify_to_error(left.queue_pair);
    must("modify to Error", modified)?;
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    session.post_send(&left, &send(5, vec![left.region.entry(0, 8)]))?;
    session.completes(&left, &[(5, flushed)])?;
    session.post_receive(&left, 6, vec![left.region.entry(64, 8)])?;
    session.completes(&left, &[(6, flushed)])?;
    session.completes_no_more(&left)?;
    session.completes_no_more(&right)
}
