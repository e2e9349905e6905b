//! Ends what hangs.

use super::DEADLINE;
use super::process::{Process, marked};
use rustix::process::Signal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Between two looks at how long the programs have run.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
/// Two minutes. A program that waits for a page does not run; one that is given its pages ever so slowly
/// does.
const LOOKS_WITHOUT_PROGRESS: u32 = 12;

/// Kills the process when no program of its run has run for long, or the deadline has passed, so that
/// nothing that waits for it waits for ever, and says what every process of the run was doing. Until the
/// sender is dropped.
pub(crate) fn watch(process: Process, mark: String, look: Duration) -> Sender<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let begin = Instant::now();
        let (mut ran, mut unchanged) = (Duration::ZERO, 0);
        // Looks are counted, and not the time: in that the machine may not have run either.
        while receiver.recv_timeout(look) == Err(RecvTimeoutError::Timeout) && process.is_alive() {
            let all = marked(&mark);
            let programs = all.iter().filter(|one| one.is_program());
            let now = programs.map(Process::ran).sum();
            unchanged = if now == ran { unchanged + 1 } else { 0 };
            ran = now;
            if unchanged >= LOOKS_WITHOUT_PROGRESS || begin.elapsed() > DEADLINE {
                let left: Vec<String> = all.iter().map(Process::describe).collect();
                let idle = look * unchanged;
                eprintln!(
                    "killed after {:?}, in the last {idle:?} of which no program ran: {left:#?}",
                    begin.elapsed()
                );
                process.signal(Signal::KILL);
                return;
            }
        }
    });
    sender
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn what_does_nothing_is_ended() {
        let mark = format!("LEGATO_TEST_MARK=watchdog-{}", std::process::id());
        let (name, value) = mark.split_once('=').unwrap();
        let mut idle = Command::new("sleep");
        let mut idle = idle.arg("1000").env(name, value).spawn().unwrap();
        let process = Process::find(idle.id() as i32).unwrap();
        let _watchdog = watch(process, mark, Duration::from_millis(5));
        assert_eq!(idle.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }
}
