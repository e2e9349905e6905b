//! A test plays the agent: it connects, speaks, and goes away in every way.

use super::super::budget::Ledger;
use super::super::control::{Connection, ControlListener};
use super::*;
use crate::machine::random_name;
use legato_base::Bytes;
use legato_base::wire::control::{AGENT_MESSAGE_SIZE, AgentMessage, NodeSet, WELCOME_SIZE};
use rustix::event::{Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect,
    recv, recvmsg, sendmsg, shutdown, socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

/// A program (`cat` waits for its input), its agent's end of the connection, and the other end.
struct Scene {
    program: Child,
    agent_side: OwnedFd,
    agent: Agent,
}

fn welcome() -> Welcome {
    Welcome {
        cache_bytes: 64 << 20,
        share_bytes: 62 << 20,
        client: 5,
        nodes: vec!["shm:@a".into()],
        lost: NodeSet::default(),
        key: None,
    }
}

/// Close-on-exec, because tests beside this one start programs.
fn new_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn scene() -> Scene {
    let name = random_name().unwrap();
    let path = std::env::temp_dir().join(name);
    let listener = ControlListener::bind(&path).unwrap();
    let agent_side = new_socket();
    assert!(listener.accept().unwrap().is_none());
    connect(&agent_side, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    std::fs::remove_file(path).unwrap();
    let agent = Agent::new(listener.accept().unwrap().unwrap());
    let program = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Scene {
        program,
        agent_side,
        agent,
    }
}

impl Scene {
    fn send(&self, body: AgentMessageBody, descriptors: &[&OwnedFd]) {
        let pid = self.program.id();
        let bytes = AgentMessage { pid, body }.to_bytes();
        let borrowed: Vec<_> = descriptors
            .iter()
            .map(|descriptor| descriptor.as_fd())
            .collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
        }
        let parts = [IoSlice::new(&bytes)];
        sendmsg(
            &self.agent_side,
            &parts,
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )
        .unwrap();
    }

    fn drive(&mut self) -> Vec<Notice> {
        let mut ledger = Ledger::new(Bytes::mib(64));
        let take_on = |_: &Connection| {
            Some(TakenOn {
                account: ledger.open().0,
                welcome: welcome(),
                proxy: None,
            })
        };
        self.agent.handle_input(take_on, Instant::now())
    }

    /// Hello, Welcome, Ready with a userfaultfd (a pipe's end here) and a page of counters.
    fn attach(&mut self, faults: u64) -> OwnedFd {
        let text = "cat".into();
        self.send(AgentMessageBody::Hello { text }, &[]);
        assert!(self.drive().is_empty());
        let mut bytes = [0; WELCOME_SIZE];
        let (length, _) = recv(&self.agent_side, &mut bytes, RecvFlags::empty()).unwrap();
        let answer = SupervisorMessage::Welcome(welcome());
        assert_eq!(SupervisorMessage::parse(&bytes[..length]), Ok(answer));
        let (held_end, userfaultfd) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let stats_file = memfd_create("stats", MemfdFlags::CLOEXEC).unwrap();
        let mut page = StatsPage::default();
        page.counters.faults = faults;
        let mut bytes = vec![0; STATS_SIZE];
        page.write_to(&mut bytes);
        File::from(stats_file.try_clone().unwrap())
            .write_all(&bytes)
            .unwrap();
        self.send(AgentMessageBody::Ready, &[&userfaultfd, &stats_file]);
        assert!(matches!(self.drive()[..], [Notice::Ready]));
        assert!(self.agent.has_attached());
        held_end
    }

    fn hang_up(&mut self) -> Vec<Notice> {
        // Closing would not do: a program that another test starts at this moment may have a copy.
        shutdown(&self.agent_side, Shutdown::Both).unwrap();
        self.drive()
    }

    fn end_program(mut self) {
        drop(self.program.stdin.take());
        self.program.wait().unwrap();
    }
}

/// The end of a pipe whose other end nobody holds any more reads as empty.
fn is_released(held_end: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(held_end, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec::default())).unwrap() > 0
}

/// The kernel reports what the agent did not read before it hands out what the agent had sent.
#[test]
fn a_goodbye_counts_although_an_order_was_left_unread() {
    let mut scene = scene();
    let _held_end = scene.attach(7);
    assert!(
        scene
            .agent
            .send(&SupervisorMessage::Share { bytes: 1 << 20 })
    );
    scene.send(AgentMessageBody::Done, &[]);
    scene.agent_side = new_socket();
    // A program that another test starts at this moment may have a copy, until it has begun.
    while scene.agent.peer().is_some() {
        assert!(scene.drive().is_empty());
        std::thread::yield_now();
    }
    assert!(scene.agent.ended());
    scene.end_program();
}

// P-33
#[test]
fn an_agent_that_says_goodbye_leaves_its_counters() {
    let mut scene = scene();
    let held_end = scene.attach(7);
    assert!(!is_released(&held_end), "the userfaultfd is held");
    scene.send(AgentMessageBody::Done, &[]);
    assert!(scene.hang_up().is_empty());
    assert!(scene.agent.ended());
    let report = scene.agent.report().unwrap();
    assert_eq!(report.stats.counters.faults, 7);
    assert_eq!(
        (report.command.as_str(), report.pid),
        ("cat", scene.program.id() as i32)
    );
    scene.end_program();
}

/// The kernel reports that first (ECONNRESET), and the goodbye after it.
#[test]
fn an_agent_that_leaves_without_reading_its_orders_has_said_goodbye() {
    let mut scene = scene();
    scene.attach(0);
    assert!(scene.agent.send(&SupervisorMessage::Share { bytes: 1 }));
    scene.send(AgentMessageBody::Done, &[]);
    let Scene {
        mut program,
        agent_side,
        mut agent,
    } = scene;
    drop(agent_side);
    // A program that another test starts at this moment may have a copy for a while.
    while !agent.ended() {
        let notices = agent.handle_input(|_| None, Instant::now());
        assert!(notices.is_empty(), "{notices:?}");
        assert_eq!(agent.deadline(), None, "taken for dead");
        std::thread::yield_now();
    }
    drop(program.stdin.take());
    program.wait().unwrap();
}

// P-31
#[test]
fn a_program_whose_agent_dies_is_killed() {
    let mut scene = scene();
    let held_end = scene.attach(1);
    assert!(scene.hang_up().is_empty());
    let deadline = scene
        .agent
        .deadline()
        .expect("the program's own end is awaited first");
    assert!(scene.agent.handle_time(deadline - ORPHAN).is_none());
    assert!(!is_released(&held_end));
    let notice = scene.agent.handle_time(deadline);
    assert!(matches!(notice, Some(Notice::AgentDied)), "{notice:?}");
    assert_eq!(
        scene.agent.deadline(),
        None,
        "nothing is left to do but to wait"
    );
    assert_eq!(scene.program.wait().unwrap().signal(), Some(9));
    assert!(scene.agent.handle_time(deadline).is_none());
    assert!(scene.agent.ended());
    assert_eq!(scene.agent.report().unwrap().stats.counters.faults, 1);
}

// P-31
#[test]
fn an_agent_that_dies_with_its_program_is_no_accident() {
    let mut scene = scene();
    scene.attach(1);
    assert!(scene.hang_up().is_empty());
    scene.program.kill().unwrap();
    scene.program.wait().unwrap();
    assert!(scene.agent.handle_time(Instant::now()).is_none());
    assert!(scene.agent.ended());
}

// P-30
#[test]
fn forked_children_are_not_left_with_zeros() {
    let mut scene = scene();
    scene.attach(1);
    let (child_end, userfaultfd) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    scene.send(AgentMessageBody::Forked, &[&userfaultfd]);
    drop(userfaultfd);
    assert!(scene.drive().is_empty());
    assert!(scene.hang_up().is_empty());
    scene.program.kill().unwrap();
    scene.program.wait().unwrap();
    // They may be ending too.
    assert!(scene.agent.handle_time(Instant::now()).is_none());
    let notice = scene.agent.handle_time(Instant::now() + ORPHAN);
    assert!(matches!(notice, Some(Notice::AgentDied)), "{notice:?}");
    assert!(!is_released(&child_end), "the children are killed first");
    drop(scene);
    assert_eq!(File::from(child_end).read(&mut [0]).unwrap(), 0);
}

#[test]
fn news_of_an_agent_become_notices() {
    let mut scene = scene();
    scene.attach(0);
    let text = "silence".to_owned();
    scene.send(
        AgentMessageBody::NodeLost {
            node: 1,
            pages: 9,
            text,
        },
        &[],
    );
    let notices = scene.drive();
    assert!(
        matches!(&notices[..], [Notice::NodeLost { node: 1, pages: 9, text }] if text == "silence"),
        "{notices:?}"
    );
    let text = "no rights".to_owned();
    scene.send(AgentMessageBody::Failed { text }, &[]);
    assert!(matches!(&scene.drive()[..], [Notice::Failed { text }] if text == "no rights"));
    scene.hang_up();
    assert!(scene.agent.ended(), "it has said why it goes");
    scene.end_program();
}

#[test]
fn an_agent_reports_and_takes_orders() {
    let mut scene = scene();
    let usage = Usage {
        resident_bytes: 5 << 20,
        ..Usage::default()
    };
    scene.attach(0);
    scene.send(AgentMessageBody::Usage(usage), &[]);
    scene.send(AgentMessageBody::Holds { bytes: 7 }, &[]);
    let notices = scene.drive();
    assert!(
        matches!(notices[..], [Notice::Usage(told), Notice::Holds { bytes: 7 }] if told == usage),
        "{notices:?}"
    );
    let order = SupervisorMessage::Share { bytes: 1 << 20 };
    assert!(scene.agent.send(&order));
    let mut bytes = [0; WELCOME_SIZE];
    let (length, _) = recv(&scene.agent_side, &mut bytes, RecvFlags::empty()).unwrap();
    assert_eq!(SupervisorMessage::parse(&bytes[..length]), Ok(order));
    scene.send(AgentMessageBody::Done, &[]);
    scene.hang_up();
    assert!(!scene.agent.send(&SupervisorMessage::Share { bytes: 1 }));
    scene.end_program();
}

/// An order that comes too late is left unread, and Linux speaks of that first.
#[test]
fn a_goodbye_is_heard_though_an_order_came_too_late() {
    let mut scene = scene();
    scene.attach(7);
    scene.send(AgentMessageBody::Done, &[]);
    assert!(scene.agent.send(&SupervisorMessage::Share { bytes: 1 }));
    scene.agent_side = new_socket();
    // A program that another test starts at this moment may have a copy, for that moment.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !scene.agent.ended() {
        assert!(Instant::now() < deadline, "no goodbye was heard");
        assert!(scene.drive().is_empty());
        std::thread::yield_now();
    }
    assert_eq!(scene.agent.report().unwrap().stats.counters.faults, 7);
    scene.end_program();
}

/// P-43: the supervisor's end of a hand's connection goes to the agent: what the hand then says, the
/// agent hears, and when the agent ends it, nobody else has it.
#[test]
fn the_connection_of_a_hand_is_passed_on() {
    let (mut hand, mut scene) = (scene(), scene());
    scene.attach(0);
    let (program, address) = (77, 0x7000_0000);
    hand.send(AgentMessageBody::Hand { program, address }, &[]);
    let mut notices = hand.drive();
    assert!(hand.agent.ended());
    assert!(hand.agent.report().is_none());
    let pid = hand.program.id();
    let Some(Notice::Hand {
        pid: child,
        program: 77,
        address: 0x7000_0000,
        connection,
    }) = notices.pop()
    else {
        panic!("not taken for a hand");
    };
    assert_eq!(child, pid);
    let order = SupervisorMessage::Hand { pid, address };
    assert!(scene.agent.hand_over(&order, connection));
    let passed = receive_descriptor(&scene.agent_side, order);
    hand.send(AgentMessageBody::Holds { bytes: 3 }, &[]);
    let mut bytes = [0; AGENT_MESSAGE_SIZE];
    let (length, _) = recv(&passed, &mut bytes, RecvFlags::empty()).unwrap();
    let heard = AgentMessage::parse(&bytes[..length]).unwrap();
    assert_eq!(heard.body, AgentMessageBody::Holds { bytes: 3 });
    drop(passed);
    // A program that another test starts at this moment may have a copy, for that moment.
    let deadline = Instant::now() + Duration::from_secs(60);
    while recv(&hand.agent_side, &mut bytes, RecvFlags::DONTWAIT).is_err() {
        assert!(Instant::now() < deadline, "the connection has not ended");
        std::thread::yield_now();
    }
    hand.end_program();
    scene.end_program();
}

fn receive_descriptor(socket: &OwnedFd, expected: SupervisorMessage) -> OwnedFd {
    let mut bytes = [0; WELCOME_SIZE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let length = recvmsg(socket, &mut parts, &mut ancillary, flags)
        .unwrap()
        .bytes;
    assert_eq!(SupervisorMessage::parse(&bytes[..length]), Ok(expected));
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    rights.expect("a descriptor comes with it")
}

// P-28
#[test]
fn what_is_no_message_ends_the_connection() {
    let mut scene = scene();
    rustix::net::send(&scene.agent_side, b"hello", SendFlags::NOSIGNAL).unwrap();
    let notices = scene.drive();
    assert!(
        matches!(notices[..], [Notice::Incompatible { .. }]),
        "{notices:?}"
    );
    assert!(scene.agent.handle_time(Instant::now()).is_none());
    assert!(scene.agent.ended());
    scene.end_program();
}

// P-102
/// Whoever sends it may have made it to keep the supervisor waiting, or to have it act on another device.
#[test]
fn what_another_user_sends_is_looked_at_first() {
    let mut scene = scene();
    let Phase::Connected(connection) = &mut scene.agent.phase else {
        panic!("not connected");
    };
    connection.is_foreign = true;
    scene.send(AgentMessageBody::Hello { text: "cat".into() }, &[]);
    assert!(scene.drive().is_empty());
    let (held_end, no_userfaultfd) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (_other_end, no_file) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    // A handshake with what is none is refused.
    let features = 1;
    scene.send(AgentMessageBody::Handshake { features }, &[&no_userfaultfd]);
    assert!(scene.drive().is_empty());
    scene.send(AgentMessageBody::Ready, &[&no_userfaultfd, &no_file]);
    drop((no_userfaultfd, no_file));
    assert!(matches!(scene.drive()[..], [Notice::Ready]));
    assert!(!scene.agent.has_attached());
    // Nobody holds the other end.
    assert_eq!(rustix::io::read(&held_end, &mut [0]), Ok(0));
}
