//! Bounds that are sampled from outside against the clock: kept, broken, or not to be told, because the
//! machine did not let the agents run.

use super::Finished;
use super::process::Process;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::time::Duration;

/// Longer than an agent that has a processor to itself ever waits for it. A program touches 7 MiB of
/// fresh memory meanwhile.
const SPOILED: Duration = Duration::from_millis(5);
/// So often is what cannot be told tried again.
const ATTEMPTS: u32 = 5;

/// How long agents waited for a processor, and how much of all processors the hypervisor took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    agents: BTreeMap<Process, Duration>,
    /// Between two looks at one agent, at most.
    longest: Duration,
    pub(crate) stolen: Duration,
}

impl Waits {
    pub(crate) fn search(&mut self, all: &[Process]) {
        let known = std::mem::take(&mut self.agents);
        for agent in all.iter().filter(|one| one.shares_memory()) {
            // All that a new one has waited counts as one wait: it is about to begin.
            let before = known.get(agent).copied().unwrap_or_default();
            self.agents.insert(*agent, before);
        }
    }

    pub(crate) fn look(&mut self) {
        for (agent, before) in &mut self.agents {
            if let Some(now) = agent.waited() {
                self.longest = self.longest.max(now.saturating_sub(*before));
                *before = now;
            }
        }
    }

    /// Why a bound that was broken tells nothing, with the number that shows it.
    pub(crate) fn spoiled(&self) -> Option<String> {
        (self.longest.max(self.stolen) > SPOILED).then(|| {
            format!(
                "an agent waited {:?} for a processor, and {:?} were stolen from the machine",
                self.longest, self.stolen
            )
        })
    }
}

/// What the hypervisor gave to others, of all processors, since the machine began (proc_stat(5)).
pub(crate) fn stolen() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.lines().next().and_then(|all| {
        let steal = all.split_whitespace().nth(8)?;
        steal.parse::<u64>().ok()
    });
    // USER_HZ is 100 on all architectures that Linux runs on today.
    Duration::from_millis(ticks.unwrap_or(0) * 10)
}

/// Runs until the bound is kept, or is broken by a run that nothing spoiled. `run` panics at wrong data,
/// and whatever else has nothing to do with time: that is never tried again.
#[track_caller]
pub(crate) fn conclusive(
    run: impl FnMut() -> Finished,
    bound: impl Fn(&Finished) -> Result<(), String>,
) -> Finished {
    match attempts(run, bound, |run| run.seen.waits.spoiled(), say) {
        Ok(finished) => finished,
        Err(broken) => panic!("{broken}"),
    }
}

fn attempts<T>(
    mut run: impl FnMut() -> T,
    bound: impl Fn(&T) -> Result<(), String>,
    spoiled: impl Fn(&T) -> Option<String>,
    mut say: impl FnMut(&str),
) -> Result<T, String> {
    for attempt in 1..=ATTEMPTS {
        let finished = run();
        let Err(broken) = bound(&finished) else {
            return Ok(finished);
        };
        let Some(reason) = spoiled(&finished) else {
            return Err(broken);
        };
        say(&format!(
            "inconclusive, attempt {attempt} of {ATTEMPTS}: {reason}; seen: {broken}"
        ));
    }
    Err(format!(
        "inconclusive: the machine spoiled all of {ATTEMPTS} attempts"
    ))
}

/// To standard error, of which only that of failed tests is shown, and to the file that `scripts/test`
/// shows at the end.
fn say(line: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    eprintln!("{test}: {line}");
    if let Some(path) = std::env::var_os("LEGATO_TEST_INCONCLUSIVE") {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        writeln!(file.unwrap(), "{test}: {line}").unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of runs that see these numbers where 10 is the bound, and whether they are spoiled; and
    /// how many of them there were.
    fn tried(seen: &[(u32, bool)]) -> (Result<u32, String>, usize) {
        let mut said = 0;
        let mut next = seen.iter();
        let bound = |(number, _): &(u32, bool)| match number {
            0..=10 => Ok(()),
            _ => Err(format!("{number} of 10")),
        };
        let spoiled = |(_, spoiled): &(u32, bool)| spoiled.then(|| "busy".to_owned());
        let say = |line: &str| {
            said += 1;
            assert!(line.contains("busy"), "{line}");
        };
        let result = attempts(|| *next.next().unwrap(), bound, spoiled, say);
        let runs = seen.len() - next.len();
        let conclusive = !matches!(&result, Err(broken) if broken.starts_with("inconclusive"));
        assert_eq!(
            said + usize::from(conclusive),
            runs,
            "each attempt but the last is told"
        );
        (result.map(|(number, _)| number), runs)
    }

    #[test]
    fn a_bound_that_is_kept_is_kept_on_a_busy_machine_too() {
        assert_eq!(tried(&[(9, true), (8, false)]), (Ok(9), 1));
    }

    #[test]
    fn a_bound_that_is_broken_on_a_quiet_machine_is_broken() {
        let broken = Err("11 of 10".to_owned());
        assert_eq!(tried(&[(11, false), (9, false)]), (broken, 1));
    }

    #[test]
    fn only_what_the_machine_spoiled_is_tried_again() {
        assert_eq!(tried(&[(12, true), (9, false)]), (Ok(9), 2));
        let broken = Err("13 of 10".to_owned());
        assert_eq!(tried(&[(12, true), (13, false), (1, false)]), (broken, 2));
    }

    #[test]
    fn a_machine_that_spoils_everything_is_no_pass() {
        let (result, runs) = tried(&[(12, true); 9]);
        assert_eq!(runs, ATTEMPTS as usize);
        assert!(result.unwrap_err().starts_with("inconclusive"));
    }

    #[test]
    #[should_panic(expected = "wrong data")]
    fn wrong_data_is_never_tried_again() {
        let mut runs = 0;
        let run = || {
            runs += 1;
            assert!(runs == 1, "tried again");
            panic!("wrong data");
        };
        let _ = attempts(run, |()| Ok(()), |()| Some("busy".to_owned()), |_| {});
    }

    #[test]
    fn a_long_wait_spoils_and_says_how_long() {
        let mut waits = Waits::default();
        assert_eq!(waits.spoiled(), None);
        waits.longest = SPOILED;
        assert_eq!(waits.spoiled(), None);
        waits.longest = Duration::from_millis(12);
        assert!(waits.spoiled().unwrap().contains("waited 12ms"));
    }
}
