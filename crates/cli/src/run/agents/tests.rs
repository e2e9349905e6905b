//! A test plays the agent: it connects, speaks, and goes away in every way.

use super::super::control::ControlListener;
use super::*;
use crate::machine::random_name;
use legato_base::wire::control::{AgentMessage, WELCOME_SIZE};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, connect, recv, sendmsg, shutdown, socket_with,
};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::{IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
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
        client: 5,
        nodes: vec!["shm:@a".into()],
    }
}

/// Close-on-exec, because tests beside this one start programs.
fn new_socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn scene() -> Scene {
    let name = random_name().unwrap();
    let listener = ControlListener::bind(&name).unwrap();
    let agent_side = new_socket();
    assert!(listener.accept().unwrap().is_none());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    connect(&agent_side, &address).unwrap();
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
        self.agent.handle_input(welcome, Instant::now())
    }

    /// Hello, Welcome, Ready with a userfaultfd (a pipe's end here) and a page of counters.
    fn attach(&mut self, faults: u64) -> OwnedFd {
        let text = "cat".into();
        self.send(AgentMessageBody::Hello { text }, &[]);
        assert!(self.drive().is_empty());
        let mut bytes = [0; WELCOME_SIZE];
        let (length, _) = recv(&self.agent_side, &mut bytes, RecvFlags::empty()).unwrap();
        assert_eq!(Welcome::parse(&bytes[..length]), Ok(welcome()));
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
        assert!(self.drive().is_empty());
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

#[test]
fn a_program_whose_agent_dies_is_killed() {
    let mut scene = scene();
    let held_end = scene.attach(1);
    assert!(scene.hang_up().is_empty());
    let deadline = scene
        .agent
        .deadline()
        .expect("the program's own end is awaited first");
    assert!(
        scene
            .agent
            .handle_time(deadline - AGENT_DEATH_GRACE)
            .is_none()
    );
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
    let notice = scene.agent.handle_time(Instant::now());
    assert!(matches!(notice, Some(Notice::AgentDied)), "{notice:?}");
    assert!(!is_released(&child_end), "the children are killed first");
    drop(scene);
    assert_eq!(File::from(child_end).read(&mut [0]).unwrap(), 0);
}

#[test]
fn news_of_an_agent_become_notices() {
    let mut scene = scene();
    scene.attach(0);
    let text = String::new();
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
        matches!(notices[..], [Notice::NodeLost { node: 1, pages: 9 }]),
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
