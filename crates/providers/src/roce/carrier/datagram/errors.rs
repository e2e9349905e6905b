//! What the network answered to packets sent before: ICMP, by way of the sockets' error queues
//! (`IP_RECVERR`, ip(7)).

use super::super::name::canonical;
use super::super::notice::{Notice, Refusal};
use super::super::system::{Envelope, IP_RECVERR, IPV6_RECVERR, SOL_IP, SOL_IPV6, receive_error};
use super::DatagramCarrier;
use core::mem::MaybeUninit;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// `struct sock_extended_err`, linux/errqueue.h.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ExtendedError {
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    _padding: u8,
    /// The MTU, if the packet was too long.
    information: u32,
    _data: u32,
}

/// `SO_EE_ORIGIN_LOCAL`: not from the network.
const ORIGIN_LOCAL: u8 = 1;
/// Sockets that are asked at once; the others are next.
const READY_MAX: usize = 16;
/// Entries taken at once at most. The rest keeps the descriptor readable.
const ENTRIES_MAX: usize = 64;

impl DatagramCarrier {
    /// Makes notices of what the network has answered up to now.
    pub(in super::super) fn take_all_errors(&mut self) {
        self.take_errors(0);
        self.take_errors_of_senders();
    }

    /// Makes notices of what has happened at the sockets that only send.
    pub(in super::super) fn take_errors_of_senders(&mut self) {
        if self.sockets.count() == 1 {
            return;
        }
        let mut events = [const { MaybeUninit::uninit() }; READY_MAX];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&at_once)) else {
            return;
        };
        for event in ready {
            let socket = event.data.u64() as usize;
            if socket > 0 {
                self.take_errors(socket);
            }
        }
    }

    /// Makes notices of the errors that wait at a socket. Returns the MTU that the kernel has held
    /// against a packet of ours, if there is one of these.
    pub(super) fn take_errors(&mut self, socket: usize) -> Option<u32> {
        let mut envelope = Envelope::EMPTY;
        let mut mtu = None;
        for _ in 0..ENTRIES_MAX {
            match receive_error(self.sockets.descriptor(socket), &mut envelope) {
                Ok(()) => mtu = self.tell(&envelope).or(mtu),
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        mtu
    }

    fn tell(&mut self, envelope: &Envelope) -> Option<u32> {
        let error = envelope.controls().find_map(|control| match control {
            (SOL_IP, IP_RECVERR, data) | (SOL_IPV6, IPV6_RECVERR, data) => {
                ExtendedError::read_from_prefix(data).ok()
            }
            _ => None,
        });
        let (error, _) = error?;
        let mtu = (error.information > 0).then_some(error.information);
        if error.origin == ORIGIN_LOCAL {
            // The call that sent has returned the same error, and is told of.
            return mtu;
        }
        let peer = envelope.from.address()?;
        let errno = i32::try_from(error.errno).ok()?;
        self.counters.icmp_errors += 1;
        let notice = Notice::Refused {
            peer: canonical(peer),
            refusal: Refusal::new(Errno::from_raw_os_error(errno), mtu),
        };
        self.notices.push(notice, &mut self.counters);
        None
    }
}
