//! The system calls that rustix does not wrap: many messages in one call, with the ancillary data
//! of UDP (udp(7), cmsg(3)). All that is unsafe about sockets is here.

use super::name::Name;
use core::marker::PhantomData;
use core::mem::size_of;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::{Errno, IoSlice};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Messages in one call at most.
pub(super) const MESSAGES: usize = 16;
/// Parts of all messages in one call at most.
const PARTS: usize = 256;
/// Bytes of ancillary data with one message. Only what was asked for comes: the traffic class and
/// the segment size, 24 bytes each.
pub(super) const CONTROL: usize = 128;

// asm-generic/unistd.h has other numbers for other processors; so has the convention below.
#[cfg(not(target_arch = "x86_64"))]
compile_error!("system calls are those of x86-64");
const SYS_SENDMSG: i64 = 46;
const SYS_RECVMSG: i64 = 47;
const SYS_SETSOCKOPT: i64 = 54;
const SYS_RECVMMSG: i64 = 299;
const SYS_SENDMMSG: i64 = 307;

const MSG_DONTWAIT: i64 = 0x40;
const MSG_ERRQUEUE: i64 = 0x2000;
const MSG_NOSIGNAL: i64 = 0x4000;
/// `MSG_TRUNC` and `MSG_CTRUNC`.
const CUT: u32 = 0x20 | 0x8;

/// IPPROTO_UDP as a level, linux/udp.h.
pub(super) const SOL_UDP: u32 = 17;
pub(super) const UDP_NO_CHECK6_RX: u32 = 102;
pub(super) const UDP_SEGMENT: u32 = 103;
pub(super) const UDP_GRO: u32 = 104;
/// linux/in.h, linux/in6.h.
pub(super) const SOL_IP: u32 = 0;
pub(super) const IP_TOS: u32 = 1;
pub(super) const IP_RECVERR: u32 = 11;
pub(super) const SOL_IPV6: u32 = 41;
pub(super) const IPV6_MTU_DISCOVER: u32 = 23;
pub(super) const IPV6_RECVERR: u32 = 25;
pub(super) const IPV6_TCLASS: u32 = 67;
/// Never fragment, and keep to what path MTU discovery has learned.
pub(super) const PMTUDISC_DO: u32 = 2;

/// `struct cmsghdr`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ControlHeader {
    pub(super) length: usize,
    pub(super) level: u32,
    pub(super) kind: u32,
}

/// The ancillary message that asks for segmentation, padded as `CMSG_SPACE` does.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SegmentControl {
    header: ControlHeader,
    segment: u16,
    padding: [u16; 3],
}

/// `struct msghdr`. The addresses are numbers: whoever fills them in answers for them.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct MessageHeader {
    name: usize,
    name_length: u32,
    _padding: u32,
    parts: usize,
    parts_count: usize,
    control: usize,
    control_length: usize,
    flags: u32,
    _padding_end: u32,
}

/// `struct mmsghdr`.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct ManyHeader {
    message: MessageHeader,
    length: u32,
    _padding: u32,
}

const _: () = assert!(size_of::<MessageHeader>() == 56 && size_of::<ManyHeader>() == 64);
const _: () = assert!(size_of::<SegmentControl>() == 24);
const _: () = assert!(size_of::<IoSlice<'_>>() == 16);

/// Messages to be sent by one call.
pub(super) struct SendBatch<'a> {
    names: [Name; MESSAGES],
    /// Parts of each message, and the segment size if it is to be segmented.
    shapes: [(usize, Option<u16>); MESSAGES],
    messages: usize,
    parts: [IoSlice<'a>; PARTS],
    parts_used: usize,
}

impl<'a> SendBatch<'a> {
    pub(super) fn new() -> Self {
        Self {
            names: [Name::NONE; MESSAGES],
            shapes: [(0, None); MESSAGES],
            messages: 0,
            parts: [IoSlice::new(&[]); PARTS],
            parts_used: 0,
        }
    }

    /// Adds a message. False if it does not fit any more.
    pub(super) fn push(
        &mut self,
        to: Name,
        segment: Option<u16>,
        parts: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> bool {
        let count = parts.len();
        let room = self.parts.get_mut(self.parts_used..).unwrap_or_default();
        if self.messages == MESSAGES || count > room.len() {
            return false;
        }
        for (place, part) in room.iter_mut().zip(parts) {
            *place = IoSlice::new(part);
        }
        self.names[self.messages] = to;
        self.shapes[self.messages] = (count, segment);
        self.messages += 1;
        self.parts_used += count;
        true
    }

    /// Sends from the first on. Returns how many messages went; an error says that none did.
    pub(super) fn send(&self, socket: impl AsFd) -> Result<usize, Errno> {
        let mut headers = [ManyHeader::new_zeroed(); MESSAGES];
        let mut controls = [SegmentControl::new_zeroed(); MESSAGES];
        let mut first = 0;
        for index in 0..self.messages {
            let (count, segment) = self.shapes[index];
            let message = &mut headers[index].message;
            message.name = self.names[index].bytes().as_ptr() as usize;
            message.name_length = self.names[index].bytes().len() as u32;
            message.parts = self.parts[first..].as_ptr() as usize;
            message.parts_count = count;
            first += count;
            if let Some(segment) = segment {
                let control = &mut controls[index];
                control.header = ControlHeader {
                    length: size_of::<ControlHeader>() + size_of::<u16>(),
                    level: SOL_UDP,
                    kind: UDP_SEGMENT,
                };
                control.segment = segment;
                message.control = core::ptr::from_ref(control) as usize;
                message.control_length = size_of::<SegmentControl>();
            }
        }
        let arguments = [
            i64::from(socket.as_fd().as_raw_fd()),
            headers.as_mut_ptr() as i64,
            self.messages as i64,
            MSG_DONTWAIT | MSG_NOSIGNAL,
            0,
        ];
        // SAFETY: every address in the headers is that of a live array here or in `self`, with the
        // length that stands beside it; the call writes to the headers only.
        unsafe { system_call(SYS_SENDMMSG, arguments) }.map(|sent| sent as usize)
    }
}

/// Sends one message of one part: [`SendBatch`] for so little costs more than the part.
pub(super) fn send_one(socket: impl AsFd, to: &Name, part: &[u8]) -> Result<(), Errno> {
    let parts = [IoSlice::new(part)];
    let mut header = MessageHeader::new_zeroed();
    header.name = to.bytes().as_ptr() as usize;
    header.name_length = to.bytes().len() as u32;
    header.parts = parts.as_ptr() as usize;
    header.parts_count = parts.len();
    let arguments = [
        i64::from(socket.as_fd().as_raw_fd()),
        core::ptr::from_ref(&header) as i64,
        MSG_DONTWAIT | MSG_NOSIGNAL,
    ];
    // SAFETY: the addresses in the header are those of `to`, `parts` and, in there, `part`, with their
    // lengths; the call writes to none of them.
    unsafe { system_call(SYS_SENDMSG, arguments) }.map(|_| ())
}

/// A message as it came, but for its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) from: Name,
    pub(super) length: usize,
    /// The message or its ancillary data did not fit.
    pub(super) cut: bool,
    control: [u64; CONTROL / 8],
    control_length: usize,
}

impl Envelope {
    pub(super) const EMPTY: Self = Self {
        from: Name::NONE,
        length: 0,
        cut: false,
        control: [0; CONTROL / 8],
        control_length: 0,
    };

    /// The ancillary messages: level, type and data.
    pub(super) fn controls(&self) -> impl Iterator<Item = (u32, u32, &[u8])> {
        let mut rest = self
            .control
            .as_bytes()
            .get(..self.control_length)
            .unwrap_or_default();
        core::iter::from_fn(move || {
            let (header, _) = ControlHeader::read_from_prefix(rest).ok()?;
            let data = rest.get(size_of::<ControlHeader>()..header.length)?;
            rest = rest
                .get(header.length.next_multiple_of(8)..)
                .unwrap_or_default();
            Some((header.level, header.kind, data))
        })
    }

    fn take(&mut self, header: &MessageHeader, length: usize) {
        self.from.set_length(header.name_length as usize);
        self.control_length = header.control_length.min(CONTROL);
        self.length = length;
        self.cut = header.flags & CUT != 0;
    }

    /// The header of a call that fills this in, and `parts`.
    fn header(&mut self, parts: &mut Part<'_>) -> MessageHeader {
        let mut header = MessageHeader::new_zeroed();
        let name = self.from.space();
        header.name = name.as_mut_ptr() as usize;
        header.name_length = name.len() as u32;
        header.parts = core::ptr::from_mut(parts) as usize;
        header.parts_count = 1;
        header.control = self.control.as_mut_ptr() as usize;
        header.control_length = CONTROL;
        header
    }
}

/// `struct iovec` for the kernel to write to.
#[derive(Clone, Copy)]
#[repr(C)]
struct Part<'a> {
    base: usize,
    length: usize,
    _bytes: PhantomData<&'a mut [u8]>,
}

impl<'a> Part<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Self {
            base: bytes.as_mut_ptr() as usize,
            length: bytes.len(),
            _bytes: PhantomData,
        }
    }
}

/// Receives messages, each into one of the pieces of `memory` of `piece` bytes. Returns how many.
pub(super) fn receive_many(
    socket: impl AsFd,
    memory: &mut [u8],
    piece: usize,
    envelopes: &mut [Envelope],
) -> Result<usize, Errno> {
    let mut headers = [ManyHeader::new_zeroed(); MESSAGES];
    let mut parts: [Part<'_>; MESSAGES] = core::array::from_fn(|_| Part::new(&mut []));
    let mut count = 0;
    for (bytes, envelope) in memory
        .chunks_exact_mut(piece)
        .zip(envelopes.iter_mut())
        .take(MESSAGES)
    {
        parts[count] = Part::new(bytes);
        headers[count].message = envelope.header(&mut parts[count]);
        count += 1;
    }
    let arguments = [
        i64::from(socket.as_fd().as_raw_fd()),
        headers.as_mut_ptr() as i64,
        count as i64,
        MSG_DONTWAIT,
        0,
    ];
    // SAFETY: every address in the headers is that of a live array here, in `envelopes` or in
    // `memory`, with the length that stands beside it, and all are borrowed for writing.
    let received = unsafe { system_call(SYS_RECVMMSG, arguments) }? as usize;
    for (header, envelope) in headers.iter().zip(envelopes.iter_mut()).take(received) {
        envelope.take(&header.message, header.length as usize);
    }
    Ok(received)
}

/// Receives one message, which costs less than [`receive_many`] of one.
pub(super) fn receive_one(
    socket: impl AsFd,
    bytes: &mut [u8],
    envelope: &mut Envelope,
) -> Result<(), Errno> {
    receive(socket, bytes, envelope, MSG_DONTWAIT)
}

/// Takes one entry of the error queue (`MSG_ERRQUEUE`, recvmsg(2)); `from` is whom the packet that
/// came to grief was for.
pub(super) fn receive_error(socket: impl AsFd, envelope: &mut Envelope) -> Result<(), Errno> {
    receive(socket, &mut [0], envelope, MSG_DONTWAIT | MSG_ERRQUEUE)
}

fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    envelope: &mut Envelope,
    flags: i64,
) -> Result<(), Errno> {
    let mut part = Part::new(bytes);
    let mut header = envelope.header(&mut part);
    let arguments = [
        i64::from(socket.as_fd().as_raw_fd()),
        core::ptr::from_mut(&mut header) as i64,
        flags,
    ];
    // SAFETY: as in `receive_many`.
    let length = unsafe { system_call(SYS_RECVMSG, arguments) }?;
    envelope.take(&header, length as usize);
    Ok(())
}

/// Sets an option that is a number.
pub(super) fn set_option(
    socket: impl AsFd,
    level: u32,
    option: u32,
    value: u32,
) -> Result<(), Errno> {
    let arguments = [
        i64::from(socket.as_fd().as_raw_fd()),
        i64::from(level),
        i64::from(option),
        core::ptr::from_ref(&value) as i64,
        size_of::<u32>() as i64,
    ];
    // SAFETY: the call reads the four bytes of `value`.
    unsafe { system_call(SYS_SETSOCKOPT, arguments) }.map(|_| ())
}

/// # Safety
/// The caller answers for what the call does with its arguments.
unsafe fn system_call<const N: usize>(number: i64, arguments: [i64; N]) -> Result<i64, Errno> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    let [a, b, c, d, e, f] = all;
    let result: i64;
    // SAFETY: the caller's promise; the registers named are those that the x86-64 system call
    // convention changes.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    match result {
        -4095..0 => Err(Errno::from_raw_os_error(-result as i32)),
        _ => Ok(result),
    }
}
