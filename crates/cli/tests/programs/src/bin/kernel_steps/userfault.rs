//! The ioctls of userfaultfd(2), raw, with errors as their names.

use legato_base::PAGE_SIZE;
use std::os::fd::RawFd;

const FEATURES: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 14 | 1 << 16;
const MISSING_AND_PROTECT: u64 = 3;
const PAGE: u64 = PAGE_SIZE as u64;

/// `_IOWR(0xAA, number, size)`.
const fn request(number: u64, words: u64) -> libc::c_ulong {
    3 << 30 | (words * 8) << 16 | 0xAA << 8 | number
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) event: u8,
    pub(crate) words: [u64; 3],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Userfault(pub(crate) RawFd);

impl Userfault {
    pub(crate) fn open() -> Result<Self, String> {
        // SAFETY: a new descriptor.
        let fd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = RawFd::try_from(fd).ok().filter(|&fd| fd >= 0);
        let opened = Self(fd.ok_or("userfaultfd is refused: root is needed")?);
        match opened.call(0x3F, &mut [0xAA, FEATURES, 0]) {
            "ok" => Ok(opened),
            error => Err(format!("features are refused: {error}")),
        }
    }

    pub(crate) fn register(self, start: u64, pages: u64) -> &'static str {
        self.call(0x00, &mut [start, pages * PAGE, MISSING_AND_PROTECT, 0])
    }

    /// From the caller's memory into a missing page.
    pub(crate) fn copy(self, to: u64, from: u64) -> &'static str {
        self.call(0x03, &mut [to, from, PAGE, 0, 0])
    }

    pub(crate) fn zero(self, page: u64) -> &'static str {
        self.call(0x04, &mut [page, PAGE, 0, 0])
    }

    pub(crate) fn move_page(self, to: u64, from: u64) -> &'static str {
        self.call(0x05, &mut [to, from, PAGE, 0, 0])
    }

    pub(crate) fn poison(self, page: u64) -> &'static str {
        self.call(0x08, &mut [page, PAGE, 0, 0])
    }

    pub(crate) fn read(self) -> Option<Message> {
        let mut bytes = [0u8; 32];
        // SAFETY: the kernel writes at most 32 bytes there.
        let length = unsafe { libc::read(self.0, bytes.as_mut_ptr().cast(), bytes.len()) };
        let word = |index: usize| {
            let word = bytes[index..index + 8].iter().rev();
            word.fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        (length == 32).then(|| Message {
            event: bytes[0],
            words: [word(8), word(16), word(24)],
        })
    }

    /// # Panics
    /// Never: the number of words is what each request is made of.
    fn call(self, number: u64, words: &mut [u64]) -> &'static str {
        loop {
            let size = words.len() as u64;
            // SAFETY: the request names as many bytes as there are; what it does to memory is
            // what the test asks for, in ranges of the test's own.
            let result = unsafe { libc::ioctl(self.0, request(number, size), words.as_mut_ptr()) };
            match crate::name_of(result) {
                "EINTR" => {}
                name => return name,
            }
        }
    }
}
