//! The IP addresses that this machine has, and which are missing: the kernel tells both (rtnetlink(7)).
//! An address goes when it is taken away, when its interface is, and when its interface is set down. A
//! cable that is out takes none: what is lost meanwhile is sent again.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::ControlFlow;
use legato_base::{Duration, Time};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How often somebody looks who never sleeps.
const LOOKS_EVERY: Duration = Duration::from_millis(20);
/// A dump during which something changed may lack what was there all the time.
const DUMPS_MAX: u32 = 8;
/// Dumps come in pieces of this many bytes at most (netlink(7) asks for 8 KiB at least).
const PIECE: usize = 32 << 10;

/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR`, linux/rtnetlink.h.
const CHANGES: u32 = 0x1 | 0x10 | 0x100;
/// linux/netlink.h.
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// linux/rtnetlink.h.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// linux/if_addr.h. With a point-to-point link IFA_ADDRESS is the other end's.
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// linux/if.h.
const IFF_UP: u32 = 1;

/// `struct nlmsghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// `struct nlmsghdr` and `struct rtgenmsg`, padded.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Request {
    header: Header,
    /// AF_UNSPEC.
    family: u32,
}

/// `struct ifinfomsg`.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Link {
    _family: u16,
    _kind: u16,
    index: u32,
    flags: u32,
    _change: u32,
}

/// `struct ifaddrmsg`.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct OfLink {
    _family: u8,
    _prefix_length: u8,
    _flags: u8,
    _scope: u8,
    link: u32,
}

/// `struct rtattr`.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Attribute {
    length: u16,
    kind: u16,
}

/// What this machine has.
#[derive(Debug)]
pub(super) struct Addresses {
    /// What was seen. Who is at an address that never was, as at most of 127.0.0.0/8, misses nothing.
    seen: Vec<IpAddr>,
    /// Of these, what was not there when it was looked for last.
    missing: Vec<IpAddr>,
    /// Where changes are told. None where there is no such socket, as in some sandboxes: then
    /// an address that goes is a peer that is silent.
    changes: Option<OwnedFd>,
    look_at: Time,
}

/// What has become of the own addresses.
#[derive(Clone, Debug)]
pub(super) struct Change<'a> {
    pub(super) missing: &'a [IpAddr],
    /// Those that were missing and are not any more.
    pub(super) returned: Vec<IpAddr>,
}

impl Addresses {
    pub(super) fn watch() -> Self {
        // Before the first look: what changes during it is told.
        let changes = open(CHANGES).ok();
        Self {
            seen: list().unwrap_or_default(),
            missing: Vec::new(),
            changes,
            look_at: Time::ZERO,
        }
    }

    /// Readable when something has changed.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(AsFd::as_fd)
    }

    /// True now and then, for somebody who asks often.
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        let due = now >= self.look_at;
        if due {
            self.look_at = now + LOOKS_EVERY;
        }
        due
    }

    /// None if nothing has changed since it was asked for last.
    pub(super) fn change(&mut self, is_own: impl Fn(IpAddr) -> bool) -> Option<Change<'_>> {
        if !self.have_changed() {
            return None;
        }
        // If nobody knows what is there now, all is as it was until the next change.
        let present = list().ok()?;
        let is_back = |address: &IpAddr| present.contains(address);
        let returned = self.missing.iter().copied().filter(is_back).collect();
        self.seen
            .retain(|address| is_own(*address) && !is_back(address));
        self.missing.clone_from(&self.seen);
        self.seen.extend(present);
        Some(Change {
            missing: &self.missing,
            returned,
        })
    }

    /// What has changed is not read: the answer to a question cannot be lost.
    fn have_changed(&self) -> bool {
        let Some(socket) = &self.changes else {
            return false;
        };
        let mut changed = false;
        loop {
            match recv(socket, &mut [0_u8; 64][..], RecvFlags::DONTWAIT) {
                // ENOBUFS: more has changed than there was room for.
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }
}

fn open(groups: u32) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::RAW;
    // Protocol 0: NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// All addresses of interfaces that are up.
fn list() -> Result<Vec<IpAddr>, Errno> {
    let socket = open(0)?;
    for _ in 0..DUMPS_MAX {
        let mut links = Vec::new();
        let mut addresses = Vec::new();
        let whole = dump(&socket, RTM_GETLINK, |kind, body| {
            links.extend((kind == RTM_NEWLINK).then(|| link_up(body)).flatten());
        })? && dump(&socket, RTM_GETADDR, |kind, body| {
            addresses.extend((kind == RTM_NEWADDR).then(|| address(body)).flatten());
        })?;
        if whole {
            addresses.retain(|(link, _)| links.contains(link));
            return Ok(addresses.into_iter().map(|(_, address)| address).collect());
        }
    }
    Err(Errno::AGAIN)
}

/// Asks for all of a kind. False if something changed meanwhile.
fn dump(socket: &OwnedFd, kind: u16, mut each: impl FnMut(u16, &[u8])) -> Result<bool, Errno> {
    let header = Header {
        length: size_of::<Request>() as u32,
        kind,
        flags: NLM_F_REQUEST | NLM_F_DUMP,
        sequence: 0,
        port: 0,
    };
    let request = Request { header, family: 0 };
    send(socket, request.as_bytes(), SendFlags::empty())?;
    let mut piece = vec![0; PIECE];
    let mut whole = true;
    loop {
        let (_, length) = match recv(socket, &mut piece[..], RecvFlags::TRUNC) {
            Err(Errno::INTR) => continue,
            received => received?,
        };
        // All of an answer is there before it is asked for.
        let bytes = piece.get(..length).ok_or(Errno::MSGSIZE)?;
        let end = messages(bytes, |header, body| {
            whole &= header.flags & NLM_F_DUMP_INTR == 0;
            match header.kind {
                NLMSG_DONE => ControlFlow::Break(Ok(())),
                NLMSG_ERROR => ControlFlow::Break(Err(Errno::IO)),
                kind => {
                    each(kind, body);
                    ControlFlow::Continue(())
                }
            }
        });
        if let ControlFlow::Break(end) = end {
            return end.map(|()| whole);
        }
    }
}

/// Calls `each` for the messages one after the other, as far as they are whole.
fn messages<B>(
    mut bytes: &[u8],
    mut each: impl FnMut(Header, &[u8]) -> ControlFlow<B>,
) -> ControlFlow<B> {
    while let Ok((header, _)) = Header::read_from_prefix(bytes) {
        let length = header.length as usize;
        let Some(body) = bytes.get(size_of::<Header>()..length) else {
            break;
        };
        each(header, body)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    ControlFlow::Continue(())
}

/// NLMSG_ALIGN and RTA_ALIGN.
const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The index of a link that is up.
fn link_up(body: &[u8]) -> Option<u32> {
    let (link, _) = Link::read_from_prefix(body).ok()?;
    (link.flags & IFF_UP != 0).then_some(link.index)
}

/// An address, and the index of its link.
fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let (of, mut rest) = OfLink::read_from_prefix(body).ok()?;
    let (mut local, mut address) = (None, None);
    while let Ok((attribute, _)) = Attribute::read_from_prefix(rest) {
        let length = usize::from(attribute.length);
        let Some(value) = rest.get(size_of::<Attribute>()..length) else {
            break;
        };
        match attribute.kind {
            IFA_LOCAL => local = ip(value),
            IFA_ADDRESS => address = ip(value),
            _ => {}
        }
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Some((of.link, local.or(address)?))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).into());
    let v6 = <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).into());
    v4.or(v6).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_there() {
        let mut addresses = Addresses::watch();
        assert!(addresses.seen.contains(&Ipv4Addr::LOCALHOST.into()));
        assert!(addresses.change(|_| true).is_none());
    }

    /// As Linux 6.18 tells an address of a point-to-point link: IFA_ADDRESS, IFA_LOCAL, IFA_LABEL.
    #[test]
    fn an_own_address_is_told_from_that_of_the_other_end() {
        let mut body = vec![2, 32, 0x80, 0, 7, 0, 0, 0];
        body.extend([8, 0, 1, 0, 10, 9, 0, 2]);
        body.extend([8, 0, 2, 0, 10, 9, 0, 1]);
        body.extend([7, 0, 3, 0, b'v', b'a', 0, 0]);
        let own = Ipv4Addr::new(10, 9, 0, 1).into();
        assert_eq!(address(&body), Some((7, own)));
        // One that is cut off says nothing, or what stands before the cut.
        for length in 0..body.len() {
            let other = Ipv4Addr::new(10, 9, 0, 2).into();
            let told = address(&body[..length]);
            let expected = match length {
                24.. => Some((7, own)),
                16.. => Some((7, other)),
                _ => None,
            };
            assert_eq!(told, expected, "{length}");
        }
    }

    #[test]
    fn messages_that_are_cut_off_end_the_list() {
        let header = |length| Header {
            length,
            kind: RTM_NEWLINK,
            flags: 0,
            sequence: 0,
            port: 0,
        };
        let mut bytes = header(18).as_bytes().to_vec();
        bytes.extend([1, 2, 0, 0]);
        let whole = bytes.len();
        bytes.extend(header(20).as_bytes());
        bytes.extend([3, 4, 5, 6]);
        for length in 0..=bytes.len() {
            let mut seen = Vec::new();
            let end = messages(&bytes[..length], |_, body| {
                seen.push(body.to_vec());
                ControlFlow::<()>::Continue(())
            });
            assert_eq!(end, ControlFlow::Continue(()));
            let expected = match length {
                40.. => 2,
                18.. => 1,
                _ => 0,
            };
            assert_eq!(seen.len(), expected, "{length}");
        }
        assert_eq!(whole, 20);
        // A header shorter than itself.
        let end = messages(header(3).as_bytes(), |_, _| ControlFlow::Break(()));
        assert_eq!(end, ControlFlow::Continue(()));
    }
}
