//! io_uring with registered buffers (io_uring_register(2)): the kernel keeps the pages pinned.

use crate::files::temporary_file;
use crate::ground::{
    Case, Checked, Failure, Ground, Outcome, bytes_of, call, check, ensure, outcome,
};
use crate::ground::{fill, resident};
use core::sync::atomic::{AtomicU32, Ordering};
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(crate) const CASES: &[(&str, Case)] = &[("registered-buffers", registered_buffers)];

// include/uapi/linux/io_uring.h
const OFFSET_SUBMISSIONS: libc::off_t = 0;
const OFFSET_COMPLETIONS: libc::off_t = 0x800_0000;
const OFFSET_ENTRIES: libc::off_t = 0x1000_0000;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const ENTER_GETEVENTS: libc::c_uint = 1;
const REGISTER_BUFFERS: libc::c_uint = 0;
const ENTRIES: u32 = 4;

/// struct io_uring_params: sizes and offsets that the kernel fills in.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    submission_entries: u32,
    completion_entries: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    work_fd: u32,
    reserved: [u32; 3],
    /// head, tail, mask, entries, flags, dropped, array, reserved, user address.
    submission: [u32; 10],
    /// head, tail, mask, entries, overflow, completions, flags, reserved, user address.
    completion: [u32; 10],
}

/// struct io_uring_sqe, as far as it is used.
#[repr(C)]
struct Submission {
    operation: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    offset: u64,
    address: u64,
    length: u32,
    operation_flags: u32,
    user_data: u64,
    buffer: u16,
    rest: [u8; 22],
}

struct Ring {
    descriptor: OwnedFd,
    parameters: Parameters,
    submissions: *mut libc::c_void,
    completions: *mut libc::c_void,
    entries: *mut libc::c_void,
}

fn map_ring(descriptor: &OwnedFd, offset: libc::off_t) -> Result<*mut libc::c_void, Failure> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
    let none = core::ptr::null_mut();
    // One page is enough for rings of four entries.
    let length = PAGE_SIZE;
    let address = call!(mmap(
        none,
        length,
        protection,
        flags,
        descriptor.as_raw_fd(),
        offset
    ))?;
    Ok(address as *mut libc::c_void)
}

impl Ring {
    /// None where io_uring is switched off.
    fn new() -> Result<Option<Self>, Failure> {
        let mut parameters = Parameters::default();
        let result = outcome!(syscall(
            libc::SYS_io_uring_setup,
            ENTRIES,
            &raw mut parameters
        ));
        let descriptor = match result {
            Ok(descriptor) => descriptor,
            Err(libc::ENOSYS | libc::EPERM) => return Ok(None),
            Err(errno) => return Err(Failure(format!("io_uring_setup: errno {errno}"))),
        };
        // SAFETY: the descriptor is new and ours.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
        Ok(Some(Self {
            submissions: map_ring(&descriptor, OFFSET_SUBMISSIONS)?,
            completions: map_ring(&descriptor, OFFSET_COMPLETIONS)?,
            entries: map_ring(&descriptor, OFFSET_ENTRIES)?,
            descriptor,
            parameters,
        }))
    }

    fn register(&self, region: &Arena) -> Checked {
        let buffer = libc::iovec {
            iov_base: region.address(0),
            iov_len: region.length(),
        };
        let ring = self.descriptor.as_raw_fd();
        call!(syscall(
            libc::SYS_io_uring_register,
            ring,
            REGISTER_BUFFERS,
            &raw const buffer,
            1
        ))?;
        Ok(())
    }

    fn word(base: *mut libc::c_void, offset: u32) -> &'static AtomicU32 {
        // SAFETY: the kernel says that a word of the ring is there; the rings stay mapped.
        unsafe { &*base.wrapping_byte_add(offset as usize).cast::<AtomicU32>() }
    }

    /// One operation on the whole registered buffer, to its end.
    fn transfer(&self, operation: u8, file: &File, region: &Arena) -> Checked {
        let [_, tail, mask, _, _, _, array, ..] = self.parameters.submission;
        let tail = Self::word(self.submissions, tail);
        let index = tail.load(Ordering::Relaxed)
            & Self::word(self.submissions, mask).load(Ordering::Relaxed);
        let length = region.length();
        let submission = Submission {
            operation,
            flags: 0,
            priority: 0,
            descriptor: file.as_raw_fd(),
            offset: 0,
            address: region.address(0) as u64,
            length: length as u32,
            operation_flags: 0,
            user_data: 77,
            buffer: 0,
            rest: [0; 22],
        };
        // SAFETY: the index is masked to the entries of the ring.
        unsafe {
            self.entries
                .cast::<Submission>()
                .add(index as usize)
                .write(submission)
        };
        Self::word(self.submissions, array + 4 * index).store(index, Ordering::Relaxed);
        tail.fetch_add(1, Ordering::Release);
        let (ring, none) = (
            self.descriptor.as_raw_fd(),
            core::ptr::null::<libc::c_void>(),
        );
        call!(syscall(
            libc::SYS_io_uring_enter,
            ring,
            1,
            1,
            ENTER_GETEVENTS,
            none,
            0
        ))?;
        let [head, _, mask, _, _, completions, ..] = self.parameters.completion;
        let head = Self::word(self.completions, head);
        let index = head.load(Ordering::Relaxed)
            & Self::word(self.completions, mask).load(Ordering::Relaxed);
        // struct io_uring_cqe: user data, result, flags; 16 bytes.
        let result =
            Self::word(self.completions, completions + 16 * index + 8).load(Ordering::Acquire);
        head.fetch_add(1, Ordering::Release);
        ensure!(
            result as usize == length,
            "operation {operation} gave {}",
            result as i32
        );
        Ok(())
    }
}

/// Device and program see the same bytes through many rounds of short memory.
fn registered_buffers(ground: &Ground) -> Result<Outcome, Failure> {
    let Some(ring) = Ring::new()? else {
        return Ok(Outcome::Skipped("io_uring is switched off"));
    };
    let region = ground.far_region(64)?;
    ring.register(&region)?;
    let length = region.length();
    let file = temporary_file()?;
    let other = Arena::new(region.pages())?;
    check(&region, 1)?;
    for version in 2..8 {
        ground.press_all();
        let left = resident(region.address(0), length)?;
        ensure!(
            left as u64 == region.pages(),
            "{left} of 64 pinned pages stayed"
        );
        fill(&region, version);
        ring.transfer(WRITE_FIXED, &file, &region)?;
        let read = call!(pread(file.as_raw_fd(), other.address(0), length, 0))?;
        ensure!(read == length, "{read} bytes in the file");
        ensure!(
            bytes_of(&other) == bytes_of(&region),
            "the device wrote other bytes"
        );
        fill(&other, version + 100);
        let written = call!(pwrite(file.as_raw_fd(), other.address(0), length, 0))?;
        ensure!(written == length, "{written} bytes written");
        ground.press_all();
        ring.transfer(READ_FIXED, &file, &region)?;
        check(&region, version + 100)?;
    }
    drop(ring);
    Ok(Outcome::Passed)
}
