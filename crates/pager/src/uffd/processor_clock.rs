//! The processor time of another process, and an alarm for when it grows.

use super::system_call::system_call;
use legato_base::Duration;
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;

// Numbers of x86-64; include/uapi/linux/signal.h and asm-generic/siginfo.h of Linux 6.18.
const SYS_RT_SIGPROCMASK: i64 = 14;
const SYS_TIMER_CREATE: i64 = 222;
const SYS_TIMER_SETTIME: i64 = 223;
const SYS_CLOCK_GETTIME: i64 = 228;
const SYS_SIGNALFD4: i64 = 289;
const SIG_BLOCK: i64 = 0;
const SIGVTALRM: u32 = 26;
/// Bytes of a set of signals.
const SET_SIZE: i64 = 8;
const SFD_CLOEXEC: i64 = 0o2_000_000;
const SFD_NONBLOCK: i64 = 0o4_000;
/// To a thread, which need not be the first one of its process.
const SIGEV_THREAD_ID: i32 = 4;

/// What every thread of a process has had of the processors together. (CPUCLOCK_SCHED in
/// `include/linux/posix-timers_types.h`; clock_getcpuclockid(3) makes it.)
#[derive(Debug)]
pub(super) struct ProcessorClock {
    clock: i64,
    /// None where there can be none.
    alarm: Option<Alarm>,
}

/// A timer that stands on the clock, and the descriptor that tells that it is over.
#[derive(Debug)]
struct Alarm {
    timer: i64,
    signals: OwnedFd,
    is_set: bool,
}

/// `struct itimerspec`: the interval, and the time until it is over.
#[repr(C)]
#[derive(Debug, Default)]
struct TimerSetting {
    interval: [i64; 2],
    seconds: i64,
    nanoseconds: i64,
}

/// `struct sigevent`.
#[repr(C)]
#[derive(Debug)]
struct SignalEvent {
    value: u64,
    signal: u32,
    notify: i32,
    thread: i32,
    rest: [i32; 11],
}

const _: () = assert!(size_of::<SignalEvent>() == 64 && size_of::<TimerSetting>() == 32);

impl ProcessorClock {
    /// The calling thread is the one that waits for the alarm.
    pub(super) fn new(process: Pid) -> Self {
        const CPUCLOCK_SCHED: i64 = 2;
        let process = i64::from(process.as_raw_nonzero().get());
        let clock = !process << 3 | CPUCLOCK_SCHED;
        Self {
            clock,
            alarm: Alarm::on(clock).ok(),
        }
    }

    /// None once the process is gone.
    pub(super) fn time(&self) -> Option<Duration> {
        let mut time = [0i64; 2];
        // SAFETY: the kernel writes a timespec, which is two numbers.
        unsafe {
            system_call(
                SYS_CLOCK_GETTIME,
                [self.clock, (&raw mut time).cast::<i64>() as i64],
            )
        }
        .ok()?;
        let [seconds, nanoseconds] = time.map(|part| u64::try_from(part).unwrap_or(0));
        Some(Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds))
    }

    /// Sets the alarm for when the time grows, or puts it out. False if it cannot be set.
    pub(super) fn set_alarm(&mut self, wanted: bool) -> bool {
        let alarm = self.alarm.as_mut();
        alarm.is_some_and(|alarm| alarm.set(wanted).is_ok())
    }

    /// Becomes readable when the alarm goes off. None while it is not set.
    pub(super) fn alarm(&self) -> Option<BorrowedFd<'_>> {
        let alarm = self.alarm.as_ref().filter(|alarm| alarm.is_set);
        alarm.map(|alarm| alarm.signals.as_fd())
    }
}

impl Alarm {
    fn on(clock: i64) -> Result<Self, Errno> {
        let signals = 1u64 << (SIGVTALRM - 1);
        let set = (&raw const signals) as i64;
        // Unblocked it would end the process.
        // SAFETY: the kernel reads a set of this size.
        unsafe { system_call(SYS_RT_SIGPROCMASK, [SIG_BLOCK, set, 0, SET_SIZE]) }?;
        let flags = SFD_CLOEXEC | SFD_NONBLOCK;
        // SAFETY: as above.
        let fd = unsafe { system_call(SYS_SIGNALFD4, [-1, set, SET_SIZE, flags]) }?;
        // SAFETY: a new descriptor, which nobody else owns.
        let signals = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).map_err(|_| Errno::BADF)?) };
        let event = SignalEvent {
            value: 0,
            signal: SIGVTALRM,
            notify: SIGEV_THREAD_ID,
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            rest: [0; 11],
        };
        let mut timer = 0i32;
        // SAFETY: the kernel reads a sigevent and writes an int.
        unsafe {
            system_call(
                SYS_TIMER_CREATE,
                [clock, (&raw const event) as i64, (&raw mut timer) as i64],
            )
        }?;
        Ok(Self {
            timer: timer.into(),
            signals,
            is_set: false,
        })
    }

    fn set(&mut self, wanted: bool) -> Result<(), Errno> {
        if wanted == self.is_set {
            return Ok(());
        }
        let setting = TimerSetting {
            nanoseconds: wanted.into(),
            ..TimerSetting::default()
        };
        // SAFETY: the kernel reads an itimerspec, and writes none.
        unsafe {
            system_call(
                SYS_TIMER_SETTIME,
                [self.timer, 0, (&raw const setting) as i64, 0],
            )
        }?;
        self.is_set = wanted;
        if !wanted {
            // It may have gone off. A signalfd_siginfo has 128 bytes; without one the call fails.
            let _ = rustix::io::read(&self.signals, &mut [0u8; 128]);
        }
        Ok(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        const SYS_TIMER_DELETE: i64 = 226;
        // SAFETY: takes a number.
        let _ = unsafe { system_call(SYS_TIMER_DELETE, [self.timer]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags};
    use rustix::process::{Signal, WaitOptions};
    use std::process::Command;

    fn wait_for(alarm: BorrowedFd<'_>) {
        let mut polled = [PollFd::from_borrowed_fd(alarm, PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut polled, None), Ok(1));
    }

    #[test]
    fn the_alarm_goes_off_whenever_the_process_runs() {
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
        let mut clock = ProcessorClock::new(pid);
        assert!(clock.alarm().is_none());
        for _ in 0..3 {
            signal(Signal::STOP);
            rustix::process::waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
            assert!(clock.set_alarm(true));
            let before = clock.time().unwrap();
            signal(Signal::CONT);
            wait_for(clock.alarm().unwrap());
            assert!(clock.time().unwrap() > before);
            clock.set_alarm(false);
            assert!(clock.alarm().is_none());
        }
        signal(Signal::KILL);
        child.wait().unwrap();
        assert_eq!(clock.time(), None);
    }

    #[test]
    fn nobody_has_had_no_time() {
        // Above what a process id can be (PID_MAX_LIMIT).
        let mut clock = ProcessorClock::new(Pid::from_raw(1 << 22).unwrap());
        assert_eq!(clock.time(), None);
        assert!(!clock.set_alarm(true) && clock.alarm().is_none());
    }
}
