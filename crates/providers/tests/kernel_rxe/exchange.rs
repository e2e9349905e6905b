//! The TCP connection over which programs in the guest and this side tell each other what a
//! connection is made of, while the NIC goes on.

use crate::guest::PATIENCE;
use crate::nic::Nic;
use crate::rig::Rig;
use legato_providers::roce::out_of_band::{INTRODUCTION_LENGTH, Introduction};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;

/// Where `ibv_rc_pingpong` and perftest listen, and go to.
pub(crate) const PORT: u16 = 18_515;
/// What the side that came says last.
const DONE: &[u8] = b"done\0";

pub(crate) struct Exchange {
    stream: TcpStream,
}

impl Exchange {
    /// Has the guest run a program that comes here. It says `ended STATUS` afterwards.
    pub(crate) fn serve<P: Nic>(rig: &mut Rig<P>, program: &str) -> Self {
        let here = rig.here;
        let listener = TcpListener::bind((here, PORT)).unwrap();
        rig.guest
            .say(&format!("({program} {here}; echo ended $?) &"));
        let (accepted, stream) = channel();
        std::thread::spawn(move || accepted.send(listener.accept().unwrap().0));
        let stream = stream.recv_timeout(PATIENCE);
        Self::of(stream.expect("the program comes"))
    }

    /// Has the guest run a program that waits for this side.
    pub(crate) fn ask<P: Nic>(rig: &mut Rig<P>, program: &str) -> Self {
        rig.guest.say(&format!("({program}; echo ended $?) &"));
        // State 0A is LISTEN (proc_pid_net(5)).
        rig.guest.say(&format!(
            "until grep -q ':{PORT:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; \
             do sleep 0.1; done; echo waits"
        ));
        rig.await_line("waits");
        Self::of(TcpStream::connect((rig.there, PORT)).unwrap())
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self { stream }
    }

    /// So many bytes of the peer's.
    pub(crate) fn receive<P: Nic>(&mut self, rig: &mut Rig<P>, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        rig.wait("told by the program", |_| {
            let mut rest = vec![0; length - bytes.len()];
            match self.stream.read(&mut rest) {
                Ok(count @ 1..) => bytes.extend_from_slice(&rest[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => panic!("{other:?}"),
            }
            (bytes.len() == length).then_some(())
        });
        bytes
    }

    /// Little, which the system always takes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn receive_introduction<P: Nic>(&mut self, rig: &mut Rig<P>) -> Introduction {
        let bytes = self.receive(rig, INTRODUCTION_LENGTH);
        Introduction::from_bytes(&bytes.try_into().unwrap()).unwrap()
    }

    pub(crate) fn receive_done<P: Nic>(&mut self, rig: &mut Rig<P>) {
        assert_eq!(self.receive(rig, DONE.len()), DONE);
    }

    pub(crate) fn send_done(&mut self) {
        self.send(DONE);
    }
}
