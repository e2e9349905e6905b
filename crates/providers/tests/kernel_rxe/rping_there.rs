//! What `rping` of rdma-core does, with a provider in the guest in one of its two roles: the client
//! names a buffer in a message, the server reads it and says so, the client names another, the server
//! writes there what it has read and says so.

use crate::rping::{Message, check_ping, message, place_in};
use crate::side::Peer;
use legato_providers::Pollable;
use legato_providers::ibverbs::IbverbsProvider;
use legato_verbs::{
    Address, CompletionKind, ConnectionEvent, Event, Provider, RemoteAddress, SendOperation,
};
use zerocopy::IntoBytes as _;

pub(crate) const ROUNDS: u32 = 10;
pub(crate) const LENGTH: u32 = 5000;
const MESSAGE: u32 = size_of::<Message>() as u32;
const SEND_AT: u64 = 0;
const RECEIVE_AT: u64 = 4096;
const SOURCE_AT: u64 = 64 << 10;
const SINK_AT: u64 = 128 << 10;

/// Numbers of requests.
const SENT: u64 = 1;
const TOLD: u64 = 2;
const MOVED: u64 = 3;

type End = Peer<IbverbsProvider>;

pub(crate) fn text_of(round: u32) -> String {
    format!("round {round} of a client in the same kernel\0")
}

impl<P: Provider + Pollable> Peer<P> {
    /// The next completion of a request or of a receive, whichever else comes before it.
    fn succeeds(&mut self, id: u64) -> CompletionKind {
        let completion = self.until("a completion", |end| {
            let place = end.completions.iter().position(|it| it.wr_id.0 == id)?;
            end.completions.remove(place)
        });
        completion.result.unwrap()
    }

    fn say(&mut self, bytes: &[u8]) {
        self.fill(SEND_AT, bytes);
        self.post(SENT, SendOperation::Send, SEND_AT, MESSAGE);
        assert_eq!(self.succeeds(SENT), CompletionKind::Send);
    }

    fn is_told(&mut self) {
        let told = CompletionKind::Receive { length: MESSAGE };
        assert_eq!(self.succeeds(TOLD), told);
    }

    fn moves(&mut self, operation: SendOperation, length: u32) {
        self.post(MOVED, operation, SINK_AT, length);
        assert_eq!(self.succeeds(MOVED), operation.completion_kind());
    }

    fn expect_word(&mut self) {
        self.post_receive(TOLD, RECEIVE_AT, MESSAGE);
    }

    fn is_established(&mut self) {
        self.event("Established", |event| {
            let is_it = matches!(
                event,
                Event::Connection(ConnectionEvent::Established { .. })
            );
            is_it.then_some(())
        });
    }
}

/// The client, to `rping -s`.
pub(crate) fn ask(provider: IbverbsProvider, address: &Address) {
    let mut end = End::over(provider);
    end.expect_word();
    end.provider.connect(end.queue_pair, address, b"").unwrap();
    end.is_established();
    for round in 0..ROUNDS {
        let text = text_of(round);
        let length = text.len() as u32;
        end.fill(SOURCE_AT, text.as_bytes());
        end.fill(SINK_AT, &vec![0; text.len() + 8]);
        for at in [SOURCE_AT, SINK_AT] {
            let place = RemoteAddress {
                address: end.region.address + at,
                key: end.region.remote_key,
            };
            end.say(message(place, length).as_bytes());
            end.is_told();
            end.expect_word();
        }
        let written = end.bytes(SINK_AT, text.len() + 8);
        assert_eq!(&written[..text.len()], text.as_bytes());
        assert_eq!(written[text.len()..], [0; 8]);
    }
    end.provider.disconnect(end.queue_pair).unwrap();
    end.disconnected();
}

/// The server, for `rping -c`.
pub(crate) fn serve(provider: IbverbsProvider, address: &Address, ready: impl FnOnce()) {
    let mut end = End::over(provider);
    end.provider.listen(address).unwrap();
    ready();
    let request = end.event("a request", |event| match event {
        Event::Connection(ConnectionEvent::Requested { request, .. }) => Some(*request),
        _ => None,
    });
    end.expect_word();
    end.provider.accept(request, end.queue_pair, b"").unwrap();
    end.is_established();
    for round in 0..ROUNDS {
        end.is_told();
        let (source, asked) = place_in(&end.bytes(RECEIVE_AT, MESSAGE as usize));
        assert_eq!(asked, LENGTH);
        end.moves(SendOperation::RdmaRead(source), asked);
        check_ping(&end.bytes(SINK_AT, asked as usize), round);
        end.expect_word();
        end.say(&[0; MESSAGE as usize]);
        end.is_told();
        let (sink, asked) = place_in(&end.bytes(RECEIVE_AT, MESSAGE as usize));
        end.moves(SendOperation::RdmaWrite(sink), asked);
        end.expect_word();
        end.say(&[0; MESSAGE as usize]);
    }
    // It says goodbye itself, after it has compared what was written with what it had.
    end.disconnected();
}
