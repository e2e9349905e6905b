//! What system calls are told, and where they put what they tell, in far pages.

use crate::ground::{Case, Failure, Ground, Outcome, call, ensure, outcome};
use crate::transfers::new_pipe;
use legato_base::PAGE_SIZE;
use legato_test_programs::Arena;
use std::ffi::CStr;
use std::os::fd::AsRawFd;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("paths", paths),
    ("signal-structures", signal_structures),
    ("timers", timers),
    ("descriptor-structures", descriptor_structures),
    ("names", names),
    ("bad-addresses", bad_addresses),
];

/// Values of one type in far pages, each in a page of its own, so that each is far when used.
struct Far<'a> {
    region: Arena,
    ground: &'a Ground,
}

impl<'a> Far<'a> {
    fn new(ground: &'a Ground) -> Result<Self, Failure> {
        Ok(Self {
            region: ground.far_region(16)?,
            ground,
        })
    }

    /// Puts the value near the end of a page, so that larger ones reach into the next.
    fn put<T>(&self, page: u64, value: T) -> *mut T {
        let address = self.slot::<T>(page);
        // SAFETY: the slot is aligned to 16 bytes and has room for a page and more.
        unsafe { address.write(value) };
        address
    }

    fn slot<T>(&self, page: u64) -> *mut T {
        self.region
            .address(page)
            .wrapping_byte_add(PAGE_SIZE - 16)
            .cast()
    }

    fn get<T: Copy>(&self, page: u64) -> T {
        // SAFETY: a value of that type was put there by the case or by the kernel.
        unsafe { self.slot::<T>(page).read() }
    }

    fn text(&self, page: u64, text: &CStr) -> *mut libc::c_char {
        let bytes = text.to_bytes_with_nul();
        let address = self.slot::<u8>(page);
        // SAFETY: the texts are shorter than a page.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
        address.cast()
    }

    fn read_text(&self, page: u64) -> String {
        // SAFETY: the kernel ends what it writes with a zero byte, or the page's zeros do.
        let text = unsafe { CStr::from_ptr(self.slot(page)) };
        text.to_string_lossy().into_owned()
    }

    fn leave(&self) -> Result<(), Failure> {
        self.ground.evict(&self.region)
    }
}

fn paths(ground: &Ground) -> Result<Outcome, Failure> {
    let far = Far::new(ground)?;
    let name = far.text(0, c"/proc/self/status");
    far.leave()?;
    let descriptor = call!(open(name, libc::O_RDONLY | libc::O_CLOEXEC))?;
    call!(close(descriptor as i32))?;
    far.leave()?;
    call!(stat(name, far.slot(2)))?;
    let status: libc::stat = far.get(2);
    ensure!(
        status.st_mode & libc::S_IFMT == libc::S_IFREG,
        "stat told {:o}",
        status.st_mode
    );
    far.leave()?;
    call!(access(name, libc::R_OK))?;
    let link = far.text(4, c"/proc/self/exe");
    far.leave()?;
    let length = call!(readlink(link, far.slot(6), 1024))?;
    // SAFETY: the text ends inside the pages of the slot.
    unsafe { far.slot::<u8>(6).add(length).write(0) };
    let own = std::env::current_exe()?;
    ensure!(
        far.read_text(6) == own.to_string_lossy(),
        "readlink told {}",
        far.read_text(6)
    );
    far.leave()?;
    call!(syscall(libc::SYS_getcwd, far.slot::<u8>(8), 1024))?;
    let directory = std::env::current_dir()?;
    ensure!(
        far.read_text(8) == directory.to_string_lossy(),
        "getcwd told {}",
        far.read_text(8)
    );
    let missing = far.text(10, c"/no such place");
    far.leave()?;
    let result = outcome!(open(missing, libc::O_RDONLY));
    ensure!(
        result == Err(libc::ENOENT),
        "a missing file gives {result:?}"
    );
    Ok(Outcome::Passed)
}

extern "C" fn ignore(_: libc::c_int) {}

fn signal_structures(ground: &Ground) -> Result<Outcome, Failure> {
    let far = Far::new(ground)?;
    let handler: extern "C" fn(libc::c_int) = ignore;
    // The kernel's own layout, which the library would copy to its stack: handler, flags,
    // restorer, mask (rt_sigaction(2)).
    let action = far.put(0, [handler as usize, 0x1000_0000, 0, 0x55]);
    far.leave()?;
    let (signal, size) = (libc::SIGURG, 8);
    call!(syscall(libc::SYS_rt_sigaction, signal, action, 0, size))?;
    far.leave()?;
    call!(syscall(
        libc::SYS_rt_sigaction,
        signal,
        0,
        far.slot::<[usize; 4]>(2),
        size
    ))?;
    let told: [usize; 4] = far.get(2);
    ensure!(
        told == [handler as usize, 0x1000_0000, 0, 0x55],
        "sigaction told {told:x?}"
    );
    let mask = far.put(4, 1_u64 << (libc::SIGURG - 1));
    far.leave()?;
    call!(syscall(
        libc::SYS_rt_sigprocmask,
        libc::SIG_BLOCK,
        mask,
        far.slot::<u64>(6),
        size
    ))?;
    call!(raise(signal))?;
    far.leave()?;
    call!(syscall(libc::SYS_rt_sigpending, far.slot::<u64>(8), size))?;
    ensure!(
        far.get::<u64>(8) & far.get::<u64>(4) != 0,
        "the signal is not pending"
    );
    let limit = far.put(
        12,
        libc::timespec {
            tv_sec: 60,
            tv_nsec: 0,
        },
    );
    far.leave()?;
    let waited = call!(syscall(
        libc::SYS_rt_sigtimedwait,
        mask,
        far.slot::<libc::siginfo_t>(10),
        limit,
        size
    ))?;
    let info: libc::siginfo_t = far.get(10);
    ensure!(
        (waited, info.si_signo) == (signal as usize, signal),
        "waited for {waited}"
    );
    Ok(Outcome::Passed)
}

fn timers(ground: &Ground) -> Result<Outcome, Failure> {
    let far = Far::new(ground)?;
    let hour = libc::timeval {
        tv_sec: 3600,
        tv_usec: 0,
    };
    let none = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let timer = far.put(
        0,
        libc::itimerval {
            it_interval: none,
            it_value: hour,
        },
    );
    far.leave()?;
    call!(setitimer(libc::ITIMER_REAL, timer, core::ptr::null_mut()))?;
    far.leave()?;
    call!(getitimer(libc::ITIMER_REAL, far.slot(2)))?;
    let left = far.get::<libc::itimerval>(2).it_value.tv_sec;
    ensure!((3000..=3600).contains(&left), "the timer has {left} s left");
    let off = far.put(
        4,
        libc::itimerval {
            it_interval: none,
            it_value: none,
        },
    );
    far.leave()?;
    call!(setitimer(libc::ITIMER_REAL, off, far.slot(6)))?;
    ensure!(
        far.get::<libc::itimerval>(6).it_value.tv_sec >= 3000,
        "the old timer was not told"
    );
    far.leave()?;
    call!(syscall(
        libc::SYS_clock_gettime,
        libc::CLOCK_MONOTONIC,
        far.slot::<libc::timespec>(8)
    ))?;
    ensure!(
        far.get::<libc::timespec>(8).tv_nsec < 1_000_000_000,
        "no time was told"
    );
    let pause = far.put(
        10,
        libc::timespec {
            tv_sec: 0,
            tv_nsec: 1000,
        },
    );
    far.leave()?;
    call!(syscall(libc::SYS_nanosleep, pause, 0))?;
    Ok(Outcome::Passed)
}

fn descriptor_structures(ground: &Ground) -> Result<Outcome, Failure> {
    let far = Far::new(ground)?;
    let (reader, writer) = new_pipe()?;
    call!(write(writer.as_raw_fd(), c"12345".as_ptr().cast(), 5))?;
    far.put(0, -1_i32);
    far.leave()?;
    call!(ioctl(
        reader.as_raw_fd(),
        libc::FIONREAD,
        far.slot::<i32>(0)
    ))?;
    ensure!(
        far.get::<i32>(0) == 5,
        "FIONREAD told {}",
        far.get::<i32>(0)
    );
    let wanted = libc::pollfd {
        fd: reader.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let polled = far.put(2, wanted);
    far.leave()?;
    ensure!(call!(poll(polled, 1, 0))? == 1, "poll sees nothing");
    ensure!(
        far.get::<libc::pollfd>(2).revents == libc::POLLIN,
        "poll told something else"
    );
    let epoll = call!(epoll_create1(libc::EPOLL_CLOEXEC))? as i32;
    let event = far.put(
        4,
        libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0xFEED,
        },
    );
    far.leave()?;
    call!(epoll_ctl(
        epoll,
        libc::EPOLL_CTL_ADD,
        reader.as_raw_fd(),
        event
    ))?;
    far.leave()?;
    ensure!(
        call!(epoll_wait(epoll, far.slot(6), 4, 0))? == 1,
        "epoll sees nothing"
    );
    let data = far.get::<libc::epoll_event>(6).u64;
    ensure!(data == 0xFEED, "epoll told {data:x}");
    call!(close(epoll))?;
    far.leave()?;
    call!(pipe2(far.slot(8), libc::O_CLOEXEC))?;
    for end in far.get::<[i32; 2]>(8) {
        ensure!(end > 2, "pipe2 told {end}");
        call!(close(end))?;
    }
    far.leave()?;
    call!(fstat(reader.as_raw_fd(), far.slot(10)))?;
    let mode = far.get::<libc::stat>(10).st_mode;
    ensure!(mode & libc::S_IFMT == libc::S_IFIFO, "fstat told {mode:o}");
    Ok(Outcome::Passed)
}

fn names(ground: &Ground) -> Result<Outcome, Failure> {
    let far = Far::new(ground)?;
    let name = far.text(0, c"far-name");
    far.leave()?;
    call!(prctl(libc::PR_SET_NAME, name))?;
    far.put(2, [0_u8; 16]);
    far.leave()?;
    call!(prctl(libc::PR_GET_NAME, far.slot::<u8>(2)))?;
    ensure!(
        far.read_text(2) == "far-name",
        "the name is {}",
        far.read_text(2)
    );
    far.leave()?;
    call!(uname(far.slot(4)))?;
    ensure!(
        far.read_text(4) == "Linux",
        "the system is {}",
        far.read_text(4)
    );
    far.leave()?;
    call!(getrlimit(libc::RLIMIT_NOFILE, far.slot(6)))?;
    ensure!(far.get::<libc::rlimit>(6).rlim_max > 0, "no limit was told");
    far.leave()?;
    let length = call!(syscall(
        libc::SYS_sched_getaffinity,
        0,
        128,
        far.slot::<u8>(8)
    ))?;
    let any = far.get::<[u8; 128]>(8)[..length]
        .iter()
        .any(|byte| *byte != 0);
    ensure!(any, "no processor was told");
    Ok(Outcome::Passed)
}

/// Far memory is no excuse: what is not mapped still gives EFAULT.
fn bad_addresses(ground: &Ground) -> Result<Outcome, Failure> {
    let region = ground.far_region(16)?;
    let hole = region.address(8);
    call!(munmap(hole, 2 * PAGE_SIZE))?;
    call!(mprotect(region.address(12), PAGE_SIZE, libc::PROT_NONE))?;
    let (reader, writer) = new_pipe()?;
    let across = region.address(7);
    let written = outcome!(write(writer.as_raw_fd(), hole, 10));
    ensure!(
        written == Err(libc::EFAULT),
        "a write from a hole gives {written:?}"
    );
    let written = outcome!(write(writer.as_raw_fd(), region.address(12), 10));
    ensure!(
        written == Err(libc::EFAULT),
        "a write from PROT_NONE gives {written:?}"
    );
    call!(write(writer.as_raw_fd(), c"0123456789".as_ptr().cast(), 10))?;
    let read = outcome!(read(reader.as_raw_fd(), hole, 10));
    ensure!(
        read == Err(libc::EFAULT),
        "a read into a hole gives {read:?}"
    );
    let opened = outcome!(open(hole.cast(), libc::O_RDONLY));
    ensure!(
        opened == Err(libc::EFAULT),
        "a path in a hole gives {opened:?}"
    );
    let random = outcome!(getrandom(across, 2 * PAGE_SIZE, 0));
    ensure!(
        random == Ok(PAGE_SIZE),
        "random bytes into a hole give {random:?}"
    );
    for page in [0, 6, 10, 11, 13, 15] {
        region.check(page, 1)?;
    }
    Ok(Outcome::Passed)
}
