//! Sits in system calls that wait, and says whether any of them ended otherwise than it should.
//!
//! `blocked KIND`: the first thread waits in the call of that name, others in all the others. When
//! a line comes on standard input everything is woken; the answer is one line. `blocked KIND
//! filtered` has filters of its system calls, which let everything through.

use legato_test_programs::{decide, end_at_a_panic, filter_system_calls};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const KINDS: [&str; 9] = [
    "read",
    "sleep",
    "futex",
    "timed-futex",
    "epoll",
    "poll",
    "receive",
    "semaphore",
    "compute",
];
/// Longer than an injection takes.
const WAIT: Duration = Duration::from_millis(150);

static GATE: AtomicU32 = AtomicU32::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    end_at_a_panic();
    let kind = std::env::args().nth(1).unwrap_or_default();
    let own = KINDS.iter().position(|&name| name == kind).expect("a kind");
    if std::env::args().nth(2).as_deref() == Some("filtered") {
        // One could be an agent's.
        filter_nothing();
        filter_nothing();
    }
    // For read, epoll and poll; ends for all three when it is closed.
    let mut pipe = [0; 2];
    // SAFETY: two descriptors are written.
    let made = unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    // SAFETY: no address is passed.
    let semaphore = unsafe { libc::semget(libc::IPC_PRIVATE, 1, 0o600) };
    assert!(semaphore >= 0);
    let waits = move |index: usize| wait(KINDS[index], pipe[0], semaphore);
    let others: Vec<_> = (0..KINDS.len())
        .filter(|&index| index != own)
        .map(|index| std::thread::spawn(move || waits(index)))
        .collect();
    let waker = std::thread::spawn(move || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("a line");
        STOP.store(true, SeqCst);
        GATE.store(1, SeqCst);
        // SAFETY: the futex is a static; the descriptor and the semaphore are ours.
        unsafe {
            libc::syscall(libc::SYS_futex, GATE.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
            libc::close(pipe[1]);
            libc::semctl(semaphore, 0, libc::IPC_RMID);
        }
    });
    println!("ready {}", std::process::id());
    let mut wrong: Vec<String> = waits(own).into_iter().collect();
    for other in others {
        wrong.extend(other.join().expect("a thread ends"));
    }
    waker.join().expect("the waker ends");
    println!("{kind}: {} wrong {wrong:?}", wrong.len());
    ExitCode::from(u8::from(!wrong.is_empty()))
}

fn filter_nothing() {
    filter_system_calls(&mut [decide(libc::SECCOMP_RET_ALLOW)]).expect("a filter");
}

/// What was wrong, if anything.
fn wait(kind: &str, pipe: i32, semaphore: i32) -> Option<String> {
    match kind {
        "sleep" => again(sleep),
        "timed-futex" => again(timed_futex),
        "receive" => again(receive),
        "compute" => again(compute),
        _ => {
            let result = wait_for_waker(kind, pipe, semaphore);
            result.err().map(|error| format!("{kind}: {error}"))
        }
    }
}

fn again(once: impl Fn() -> Option<String>) -> Option<String> {
    loop {
        let wrong = once();
        if wrong.is_some() || STOP.load(SeqCst) {
            return wrong;
        }
    }
}

fn last(result: i64) -> Result<i64, std::io::Error> {
    if result < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(result)
}

fn wait_for_waker(kind: &str, pipe: i32, semaphore: i32) -> Result<(), std::io::Error> {
    let mut byte = [0u8; 1];
    // SAFETY: all structures live until the calls return.
    unsafe {
        match kind {
            "read" => assert_eq!(
                last(libc::read(pipe, byte.as_mut_ptr().cast(), 1) as i64)?,
                0
            ),
            "futex" => {
                let none = std::ptr::null::<libc::timespec>();
                let result =
                    libc::syscall(libc::SYS_futex, GATE.as_ptr(), libc::FUTEX_WAIT, 0, none);
                if GATE.load(SeqCst) == 0 {
                    last(result)?;
                }
            }
            "epoll" => {
                let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
                let mut event = libc::epoll_event { events: 0, u64: 7 };
                last(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, pipe, &raw mut event).into())?;
                let count = libc::epoll_wait(epoll, &raw mut event, 1, -1);
                assert_eq!(last(count.into())?, 1);
            }
            "poll" => {
                let mut polled = libc::pollfd {
                    fd: pipe,
                    events: libc::POLLIN,
                    revents: 0,
                };
                let mut mask = std::mem::zeroed::<libc::sigset_t>();
                libc::sigfillset(&raw mut mask);
                let none = std::ptr::null();
                let count = libc::ppoll(&raw mut polled, 1, none, &raw const mask);
                assert_eq!(last(count.into())?, 1);
            }
            "semaphore" => {
                let mut operation = libc::sembuf {
                    sem_num: 0,
                    sem_op: -1,
                    sem_flg: 0,
                };
                let result = last(libc::semop(semaphore, &raw mut operation, 1).into());
                let error = result.expect_err("it is never raised").raw_os_error();
                if !matches!(error, Some(libc::EIDRM | libc::EINVAL)) {
                    return Err(std::io::Error::from_raw_os_error(error.unwrap_or(0)));
                }
            }
            other => panic!("{other}"),
        }
    }
    Ok(())
}

fn timespec() -> libc::timespec {
    libc::timespec {
        tv_sec: 0,
        tv_nsec: WAIT.subsec_nanos().into(),
    }
}

fn sleep() -> Option<String> {
    let begin = Instant::now();
    let time = timespec();
    // SAFETY: the structure lives until the call returns.
    let result = unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
    let slept = begin.elapsed();
    (result != 0 || slept < WAIT).then(|| format!("nanosleep: {result} after {slept:?}"))
}

fn timed_futex() -> Option<String> {
    let time = timespec();
    let word = AtomicU32::new(0);
    // SAFETY: the word and the structure live until the call returns.
    let result = unsafe {
        let wait = libc::FUTEX_WAIT;
        libc::syscall(libc::SYS_futex, word.as_ptr(), wait, 0, &raw const time)
    };
    let error = std::io::Error::last_os_error();
    (result != -1 || error.raw_os_error() != Some(libc::ETIMEDOUT))
        .then(|| format!("futex: {result}, {error}"))
}

/// A socket with a time limit, where the kernel would say EINTR for anything.
fn receive() -> Option<String> {
    let (one, _other) = std::os::unix::net::UnixDatagram::pair().expect("sockets");
    one.set_read_timeout(Some(WAIT)).expect("a limit");
    let error = one.recv(&mut [0]).expect_err("nobody sends");
    (error.raw_os_error() != Some(libc::EAGAIN)).then(|| format!("recv: {error}"))
}

/// Vector registers and flags are in use nearly all the time.
fn compute() -> Option<String> {
    let sum = || {
        let mut lanes = [1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        for step in 0..200_000u32 {
            for lane in &mut lanes {
                *lane = lane.mul_add(0.999_999, f64::from(step & 7));
            }
        }
        lanes.map(f64::to_bits)
    };
    let (first, second) = (sum(), sum());
    (first != second).then(|| format!("compute: {first:?} {second:?}"))
}
