//! A rig, and a bystander who must not notice anything.

use super::{Node, REGION_LENGTH, Rig, SERVICE, Way, roce};
use legato_base::{Duration, Random};
use legato_verbs::{CompletionKind, Provider, QueuePair, QueuePairState, SendOperation};
use std::cell::RefCell;
use std::rc::Rc;

const LONGEST: Duration = Duration::from_secs(12);

pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::from_seed(seed);
    (0..length).map(|_| random.next_u64() as u8).collect()
}

/// The rig, and a third one whose connection to the server the relay has no part in.
pub(crate) struct Town {
    pub(crate) rig: Rig,
    neighbour: Node,
    near: QueuePair,
    far: QueuePair,
    /// What the server's memory is that no packet of the relay may change: its own region, and the
    /// neighbour's in a domain of its own.
    guarded: legato_verbs::MemoryRegion,
    expected: Vec<u8>,
}

impl Town {
    pub(crate) fn new(net: u8) -> Self {
        let mut rig = Rig::new(net);
        let mut neighbour = Node::new(&format!("127.31.{net}.5:4791"));
        let expected = pattern(99, REGION_LENGTH as usize);
        let server = &mut rig.server;
        let private = server.private;
        server
            .provider
            .write_region(&private, 0, &expected)
            .unwrap();
        let domain = server.provider.create_protection_domain().unwrap();
        let access = legato_verbs::AccessFlags::from_bits(15);
        let provider = &mut server.provider;
        let guarded = provider.allocate_region(domain, REGION_LENGTH, access);
        let guarded = guarded.unwrap();
        provider.write_region(&guarded, 0, &expected).unwrap();
        // A queue pair of the other domain.
        let own = std::mem::replace(&mut server.domain, domain);
        let far = server.queue_pair();
        server.domain = own;
        let near = neighbour.queue_pair();
        let address = roce(&format!("127.31.{net}.1:{SERVICE}"));
        neighbour.provider.connect(near, &address, &[]).unwrap();
        let connected = rig.run(LONGEST, |rig| {
            neighbour.progress(rig.now);
            if let Some(request) = rig.server.take_request() {
                rig.server.provider.accept(request, far, &[]).unwrap();
            }
            neighbour.stage(near) == Some(true) && rig.server.stage(far) == Some(true)
        });
        assert!(connected);
        Self {
            rig,
            neighbour,
            near,
            far,
            guarded,
            expected,
        }
    }

    /// Nothing that is not the relay's has changed, and the neighbour still reads its memory.
    pub(crate) fn check(&mut self, what: &str) {
        assert!(self.rig.server.private_bytes() == self.expected, "{what}");
        let mut bytes = vec![0; REGION_LENGTH as usize];
        let server = &self.rig.server.provider;
        server.read_region(&self.guarded, 0, &mut bytes).unwrap();
        assert!(bytes == self.expected, "{what}");
        let states = (
            server.query_queue_pair(self.far),
            self.neighbour.provider.query_queue_pair(self.near),
        );
        let ready = Ok(QueuePairState::ReadyToSend);
        assert_eq!(states, (ready, ready), "{what}");
        self.neighbour.fill(0, &[0; 512]);
        let from = legato_verbs::RemoteAddress {
            key: self.guarded.remote_key,
            address: self.guarded.address + 100,
        };
        let (near, read) = (self.near, SendOperation::RdmaRead(from));
        assert!(self.neighbour.post(near, 7, read, (0, 512)));
        let Self { rig, neighbour, .. } = self;
        let came = rig.run(LONGEST, |rig| {
            neighbour.progress(rig.now);
            !neighbour.done.is_empty()
        });
        assert!(came, "{what}");
        let done = self.neighbour.done.pop().unwrap();
        assert_eq!(done.result, Ok(CompletionKind::RdmaRead), "{what}");
        assert!(self.neighbour.bytes(0, 512) == self.expected[100..612]);
    }

    /// A connection with requests both ways and its end. True if all went well.
    pub(crate) fn story(&mut self) -> bool {
        let rig = &mut self.rig;
        let (client, server, mut well) = rig.connect();
        if let Some(server) = server.filter(|_| well) {
            well = self.requests(client, server);
        }
        let rig = &mut self.rig;
        let _ = rig.client.provider.disconnect(client);
        rig.run(LONGEST, |rig| {
            let far = server.and_then(|server| rig.server.stage(server));
            rig.client.stage(client) == Some(false) && far != Some(true)
        });
        rig.client.provider.destroy_queue_pair(client).unwrap();
        if let Some(server) = server {
            rig.server.provider.destroy_queue_pair(server).unwrap();
        }
        for node in [&mut rig.client, &mut rig.server] {
            node.events.clear();
            node.done.clear();
        }
        well
    }

    fn requests(&mut self, client: QueuePair, server: QueuePair) -> bool {
        let rig = &mut self.rig;
        let data = pattern(5, 8192);
        rig.client.fill(0, &data);
        rig.server.fill(0, &[0; 16384]);
        rig.server.fill(32768, &data);
        rig.client.fill(32768, &[0; 8192]);
        let (far, near) = (rig.server.at(0), rig.client.at(0));
        rig.server.post_receive(server, 1, (0, 512));
        rig.client.post_receive(client, 1, (40_000, 512));
        let at = |base: legato_verbs::RemoteAddress, offset| legato_verbs::RemoteAddress {
            address: base.address + offset,
            ..base
        };
        let write = SendOperation::RdmaWrite(at(far, 4096));
        let read = SendOperation::RdmaRead(at(far, 32768));
        let add = SendOperation::FetchAndAdd {
            target: at(far, 2048),
            add: 5,
        };
        let mut posted = rig.client.post(client, 2, SendOperation::Send, (0, 301));
        posted &= rig.client.post(client, 3, write, (0, 5000));
        posted &= rig.client.post(client, 4, read, (32768, 5000));
        posted &= rig.client.post(client, 5, add, (60_000, 8));
        let read = SendOperation::RdmaRead(near);
        posted &= rig.server.post(server, 3, read, (8192, 5000));
        posted &= rig
            .server
            .post(server, 2, SendOperation::Send, (32768, 301));
        let all = (5, 3);
        rig.run(LONGEST, |rig| {
            let over = |stage: Option<bool>| stage == Some(false);
            (rig.client.done.len(), rig.server.done.len()) == all
                || over(rig.client.stage(client)) && over(rig.server.stage(server))
        });
        let done = (rig.client.done.len(), rig.server.done.len());
        let mut finished = rig.client.done.iter().chain(&rig.server.done);
        posted
            && done == all
            && finished.all(|done| done.result.is_ok())
            && rig.server.bytes(0, 301) == data[..301]
            && rig.server.bytes(4096, 5000)[..4096] == data[..4096]
            && rig.client.bytes(32768, 5000) == data[..5000]
            && rig.server.bytes(8192, 5000) == data[..5000]
            && rig.client.bytes(40_000, 301) == data[..301]
            && rig.server.bytes(2048, 1) == [5]
    }

    /// All packets of a story.
    pub(crate) fn captured(&mut self) -> Vec<(Way, Vec<u8>)> {
        let tape = Rc::new(RefCell::new(Vec::new()));
        let onto = tape.clone();
        self.rig.rule = Box::new(move |way, bytes| {
            onto.borrow_mut().push((way, bytes.to_vec()));
            vec![(Duration::ZERO, bytes.to_vec())]
        });
        assert!(self.story());
        self.pass();
        tape.take()
    }

    /// The relay changes nothing.
    pub(crate) fn pass(&mut self) {
        self.rig.rule = Box::new(|_, bytes| vec![(Duration::ZERO, bytes.to_vec())]);
    }
}

impl Town {
    /// After the longest that anything waits for there is only what was made.
    pub(crate) fn leaves_nothing(mut self) {
        let rig = &mut self.rig;
        while let Some(request) = rig.server.take_request() {
            rig.server.provider.reject(request, &[]).unwrap();
        }
        let idle = Duration::from_secs(200);
        let neighbour = &mut self.neighbour;
        rig.run(idle, |rig| {
            neighbour.progress(rig.now);
            false
        });
        assert_eq!(rig.client.provider.resource_counts().connection_state, 0);
        assert_eq!(rig.client.provider.resource_counts().queue_pairs, 0);
        let counts = rig.server.provider.resource_counts();
        assert_eq!((counts.connection_state, counts.queue_pairs), (0, 1));
    }
}
