//! System calls that copy out of far pages and into far pages.

use crate::files::temporary_file;
use crate::ground::{Case, Failure, Ground, Outcome, bytes_of, call, ensure};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub(crate) const CASES: &[(&str, Case)] = &[
    ("system-calls-copy", system_calls_copy),
    ("socket-messages", socket_messages),
    ("random-bytes", random_bytes),
];

/// Small enough for a pipe of 64 KiB at an odd offset, and for a socket.
const LENGTH: usize = 12 * PAGE_SIZE;
/// Not at the beginning of a page, but for direct I/O.
const OFFSET: usize = 512;

/// One way from one place in memory to another.
type Way = fn(*mut libc::c_void, *mut libc::c_void, &File) -> Result<(), Failure>;

const WAYS: [(&str, Way); 9] = [
    ("write, read", file_pointer),
    ("pwrite, pread", positions),
    ("writev, readv", vectors),
    ("pipe", pipe),
    ("socket", socket),
    ("vmsplice, splice", splices),
    ("sendfile", send_file),
    ("process_vm_readv", process_read),
    ("process_vm_writev", process_write),
];

fn system_calls_copy(ground: &Ground) -> Result<Outcome, Failure> {
    let from = ground.far_region(16)?;
    let expected = bytes_of(&from);
    for (name, way) in WAYS {
        let to = ground.far_region(16)?;
        let mut target = bytes_of(&to);
        let file = temporary_file()?;
        target[OFFSET..OFFSET + LENGTH].copy_from_slice(&expected[OFFSET..OFFSET + LENGTH]);
        ground.evict(&from)?;
        ground.evict(&to)?;
        way(at(&from), at(&to), &file).map_err(|failure| Failure(format!("{name}: {failure}")))?;
        ensure!(bytes_of(&to) == target, "{name}: the target is wrong");
        ensure!(
            bytes_of(&from) == expected,
            "{name}: the source has changed"
        );
    }
    Ok(Outcome::Passed)
}

fn at(region: &Arena) -> *mut libc::c_void {
    region.address(0).wrapping_byte_add(OFFSET)
}

fn whole(name: &str, result: Result<usize, Failure>) -> Result<(), Failure> {
    let length = result?;
    ensure!(length == LENGTH, "{name}: {length} bytes of {LENGTH}");
    Ok(())
}

fn file_pointer(
    from: *mut libc::c_void,
    to: *mut libc::c_void,
    file: &File,
) -> Result<(), Failure> {
    whole("write", call!(write(file.as_raw_fd(), from, LENGTH)))?;
    call!(lseek(file.as_raw_fd(), 0, libc::SEEK_SET))?;
    whole("read", call!(read(file.as_raw_fd(), to, LENGTH)))
}

fn positions(from: *mut libc::c_void, to: *mut libc::c_void, file: &File) -> Result<(), Failure> {
    whole("pwrite", call!(pwrite(file.as_raw_fd(), from, LENGTH, 100)))?;
    whole("pread", call!(pread(file.as_raw_fd(), to, LENGTH, 100)))
}

/// Pieces of a page and of a part of one, from the last to the first.
fn pieces(start: *mut libc::c_void) -> Vec<libc::iovec> {
    let piece = |index: usize| libc::iovec {
        iov_base: start.wrapping_byte_add(index * LENGTH / 8),
        iov_len: LENGTH / 8,
    };
    (0..8).rev().map(piece).collect()
}

fn vectors(from: *mut libc::c_void, to: *mut libc::c_void, file: &File) -> Result<(), Failure> {
    let (from, to) = (pieces(from), pieces(to));
    whole("writev", call!(writev(file.as_raw_fd(), from.as_ptr(), 8)))?;
    whole("preadv", call!(preadv(file.as_raw_fd(), to.as_ptr(), 8, 0)))
}

pub(crate) fn new_pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let mut ends = [0; 2];
    call!(pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
    // SAFETY: both descriptors are new and ours.
    let [reader, writer] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((reader, writer))
}

fn new_sockets(kind: libc::c_int) -> Result<(OwnedFd, OwnedFd), Failure> {
    let mut ends = [0; 2];
    call!(socketpair(
        libc::AF_UNIX,
        kind | libc::SOCK_CLOEXEC,
        0,
        ends.as_mut_ptr()
    ))?;
    // SAFETY: both descriptors are new and ours.
    let [one, other] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((one, other))
}

fn pipe(from: *mut libc::c_void, to: *mut libc::c_void, _: &File) -> Result<(), Failure> {
    let (reader, writer) = new_pipe()?;
    whole("write", call!(write(writer.as_raw_fd(), from, LENGTH)))?;
    whole("read", call!(read(reader.as_raw_fd(), to, LENGTH)))
}

fn socket(from: *mut libc::c_void, to: *mut libc::c_void, _: &File) -> Result<(), Failure> {
    let (one, other) = new_sockets(libc::SOCK_STREAM)?;
    whole("send", call!(send(one.as_raw_fd(), from, LENGTH, 0)))?;
    whole(
        "recv",
        call!(recv(other.as_raw_fd(), to, LENGTH, libc::MSG_WAITALL)),
    )
}

/// The pipe takes the pages themselves; from there they go to a file.
fn splices(from: *mut libc::c_void, to: *mut libc::c_void, file: &File) -> Result<(), Failure> {
    let (reader, writer) = new_pipe()?;
    let piece = libc::iovec {
        iov_base: from,
        iov_len: LENGTH,
    };
    whole(
        "vmsplice",
        call!(vmsplice(writer.as_raw_fd(), &raw const piece, 1, 0)),
    )?;
    let none = core::ptr::null_mut();
    let (pipe, file) = (reader.as_raw_fd(), file.as_raw_fd());
    let mut spliced = 0;
    while spliced < LENGTH {
        let more = call!(splice(pipe, none, file, none, LENGTH - spliced, 0))?;
        ensure!(more > 0, "splice ends after {spliced} bytes");
        spliced += more;
    }
    whole("pread", call!(pread(file, to, LENGTH, 0)))
}

fn send_file(from: *mut libc::c_void, to: *mut libc::c_void, file: &File) -> Result<(), Failure> {
    let file: RawFd = file.as_raw_fd();
    whole("pwrite", call!(pwrite(file, from, LENGTH, 0)))?;
    let (one, other) = new_sockets(libc::SOCK_STREAM)?;
    let mut sent = 0_i64;
    while (sent as usize) < LENGTH {
        let left = LENGTH - sent as usize;
        ensure!(
            call!(sendfile(one.as_raw_fd(), file, &raw mut sent, left))? > 0,
            "sendfile ends"
        );
    }
    whole(
        "recv",
        call!(recv(other.as_raw_fd(), to, LENGTH, libc::MSG_WAITALL)),
    )
}

fn process_read(from: *mut libc::c_void, to: *mut libc::c_void, _: &File) -> Result<(), Failure> {
    let (remote, local) = (pieces(from), pieces(to));
    let pid = call!(getpid())? as libc::pid_t;
    let copied = call!(process_vm_readv(
        pid,
        local.as_ptr(),
        8,
        remote.as_ptr(),
        8,
        0
    ));
    whole("process_vm_readv", copied)
}

fn process_write(from: *mut libc::c_void, to: *mut libc::c_void, _: &File) -> Result<(), Failure> {
    let (local, remote) = (pieces(from), pieces(to));
    let pid = call!(getpid())? as libc::pid_t;
    let copied = call!(process_vm_writev(
        pid,
        local.as_ptr(),
        8,
        remote.as_ptr(),
        8,
        0
    ));
    whole("process_vm_writev", copied)
}

/// Everything that sendmsg(2) and recvmsg(2) are told is far away: the header, the vector, the
/// bytes, and where a passed descriptor is put.
fn socket_messages(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(32)?;
    let expected = bytes_of(&region);
    let (one, other) = new_sockets(libc::SOCK_SEQPACKET)?;
    let word = |page: u64| region.address(page);
    let header = |page: u64, bytes: u64, control: u64| {
        let vector = libc::iovec {
            iov_base: word(bytes),
            iov_len: PAGE_SIZE,
        };
        // SAFETY: a zeroed msghdr is a valid one; the pages are the region's and hold both.
        unsafe {
            word(page + 1).cast::<libc::iovec>().write(vector);
            let mut message: libc::msghdr = core::mem::zeroed();
            message.msg_iov = word(page + 1).cast();
            message.msg_iovlen = 1;
            message.msg_control = word(control);
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            word(page).cast::<libc::msghdr>().write(message);
        }
    };
    header(0, 8, 4);
    header(2, 9, 5);
    // SAFETY: the page has room for one control message.
    unsafe {
        let mut control: libc::cmsghdr = core::mem::zeroed();
        control.cmsg_len = libc::CMSG_LEN(4) as usize;
        control.cmsg_level = libc::SOL_SOCKET;
        control.cmsg_type = libc::SCM_RIGHTS;
        word(4).cast::<libc::cmsghdr>().write(control);
        libc::CMSG_DATA(word(4).cast())
            .cast::<i32>()
            .write(one.as_raw_fd());
    }
    ground.evict(&region)?;
    let sent = call!(sendmsg(one.as_raw_fd(), word(0).cast(), 0))?;
    let received = call!(recvmsg(
        other.as_raw_fd(),
        word(2).cast(),
        libc::MSG_CMSG_CLOEXEC
    ))?;
    ensure!(
        (sent, received) == (PAGE_SIZE, PAGE_SIZE),
        "{sent} sent, {received} received"
    );
    let found = bytes_of(&region);
    let page = |bytes: &[u8], page: usize| bytes[page * PAGE_SIZE..][..PAGE_SIZE].to_vec();
    ensure!(
        page(&found, 9) == page(&expected, 8),
        "another message came"
    );
    // SAFETY: the kernel has written one control message there.
    let passed = unsafe { libc::CMSG_DATA(word(5).cast()).cast::<i32>().read() };
    ensure!(passed > 2, "descriptor {passed} came");
    // SAFETY: the descriptor is new and ours.
    drop(unsafe { OwnedFd::from_raw_fd(passed) });
    for page in 10..region.pages() {
        region.check(page, 1)?;
    }
    Ok(Outcome::Passed)
}

/// They arrive, and they stay when their page leaves.
fn random_bytes(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(8)?;
    let expected = bytes_of(&region);
    ground.evict(&region)?;
    let length = 5 * PAGE_SIZE;
    let mut given = 0;
    while given < length {
        given += call!(getrandom(
            at(&region).wrapping_byte_add(given),
            length - given,
            0
        ))?;
    }
    let found = bytes_of(&region);
    let inside = OFFSET..OFFSET + length;
    let same = found[inside.clone()]
        .iter()
        .zip(&expected[inside])
        .filter(|(a, b)| a == b);
    // One byte in 256 is the same by chance.
    ensure!(same.count() < length / 64, "random bytes did not arrive");
    ensure!(
        found[..OFFSET] == expected[..OFFSET],
        "bytes before the range changed"
    );
    ensure!(
        found[OFFSET + length..] == expected[OFFSET + length..],
        "bytes after it changed"
    );
    ground.evict(&region)?;
    ensure!(
        bytes_of(&region) == found,
        "random bytes changed while they were away"
    );
    Ok(Outcome::Passed)
}
