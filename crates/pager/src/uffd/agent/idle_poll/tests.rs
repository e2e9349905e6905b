use super::*;

/// A program whose faults a second depend on whether idle processors poll.
#[derive(Clone, Copy)]
struct Program {
    halting: u64,
    polling: u64,
}

const GAINS: Program = Program {
    halting: 50_000,
    polling: 100_000,
};
const GAINS_NOTHING: Program = Program {
    halting: 50_000,
    polling: 52_000,
};
const COMPUTES: Program = Program {
    halting: 9_000,
    polling: 9_000,
};
const SECOND: Duration = Duration::from_millis(1_000);
const INSTANT: Duration = Duration::from_nanos(1);

/// A machine, its clock, and one program on it.
struct Scene {
    idle_poll: IdlePoll,
    kernel: OwnedFd,
    now: Time,
    faults: u64,
    polls: bool,
    /// Processors that poll go on until [`Self::halt`].
    is_sticky: bool,
}

impl Scene {
    fn new() -> Self {
        let (kernel, request) = rustix::pipe::pipe().unwrap();
        let mut idle_poll = IdlePoll::new();
        idle_poll.grant(request);
        Self {
            idle_poll,
            kernel,
            now: Time::ZERO + SECOND,
            faults: 0,
            polls: false,
            is_sticky: false,
        }
    }

    fn sticky() -> Self {
        Self {
            is_sticky: true,
            ..Self::new()
        }
    }

    /// Lets the program run until the agent counts again, or for so many times as long.
    fn step(&mut self, program: Program, times: u64) {
        let elapsed = self.idle_poll.due().since(self.now).max(INSTANT);
        let elapsed = Duration::from_nanos(elapsed.as_nanos() * times);
        let pace = if self.polls {
            program.polling
        } else {
            program.halting
        };
        self.faults += pace * elapsed.as_nanos() / 1_000_000_000;
        self.now = self.now + elapsed;
        let was_held = self.is_held();
        self.idle_poll.tick(self.now, self.faults);
        if self.is_held() != was_held {
            let mut latency = [0; 4];
            assert_eq!(rustix::io::read(&self.kernel, &mut latency), Ok(4));
            let is_asked_for = i32::from_le_bytes(latency) == 0;
            assert_eq!(is_asked_for, self.is_held());
            self.polls = is_asked_for || self.is_sticky;
        }
    }

    fn run(&mut self, program: Program, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step(program, 1);
        }
    }

    /// A processor was idle for so long that it halts, unless it may not.
    fn halt(&mut self) {
        self.polls = self.is_held();
    }

    fn is_held(&self) -> bool {
        self.idle_poll.is_held
    }

    fn log(&self) -> IdlePollLog {
        self.idle_poll.log(self.now)
    }
}

#[test]
fn processors_poll_once_a_trial_has_shown_a_gain() {
    let mut scene = Scene::new();
    scene.run(GAINS, SECOND);
    let log = scene.log();
    assert_eq!((log.trials, log.trials_won), (1, 1));
    assert!(scene.is_held());
    assert!(log.held > Duration::from_millis(900), "{log:?}");
}

#[test]
fn without_a_gain_they_halt_and_trials_become_rare() {
    let mut scene = Scene::new();
    scene.run(GAINS_NOTHING, SECOND);
    assert!(!scene.is_held());
    assert_eq!(scene.log().trials, 1);
    for _ in 0..600 {
        scene.run(GAINS_NOTHING, SECOND);
    }
    let log = scene.log();
    // After 1, 3, 7, 15, 31, 63 seconds, and then once a minute.
    assert_eq!((log.trials, log.trials_won), (15, 0));
    assert!(log.held < SECOND, "{log:?}");
}

#[test]
fn a_gain_is_looked_at_again_and_believed_for_longer_each_time() {
    let mut scene = Scene::new();
    for _ in 0..120 {
        scene.run(GAINS, SECOND);
    }
    let log = scene.log();
    // After 1, 3, 7, 15 seconds, and then every ten.
    assert_eq!((log.trials, log.trials_won), (15, 15));
    assert!(log.held > Duration::from_millis(119_000), "{log:?}");
    for _ in 0..11 {
        scene.run(GAINS_NOTHING, SECOND);
    }
    assert!(!scene.is_held(), "believed for longer than it was true");
}

#[test]
fn a_program_that_becomes_faster_by_itself_is_found_out() {
    let mut scene = Scene::new();
    scene.step(GAINS_NOTHING, 1);
    scene.step(GAINS_NOTHING, 1);
    let faster = Program {
        halting: 100_000,
        polling: 100_000,
    };
    scene.step(faster, 1);
    scene.step(faster, 1);
    assert_eq!(scene.log().trials_won, 1);
    scene.run(faster, SECOND + SECOND);
    assert!(!scene.is_held());
    assert!(scene.log().held < SECOND + SECOND);
}

#[test]
fn processors_that_go_on_polling_are_asked_again_when_they_halt() {
    let mut scene = Scene::sticky();
    scene.run(GAINS, SECOND + SECOND);
    assert!(scene.polls && !scene.is_held());
    scene.halt();
    scene.run(GAINS, Duration::from_millis(30));
    assert!(scene.is_held(), "the program has become slower");
    scene.run(GAINS, SECOND);
    assert!(scene.is_held());
}

#[test]
fn they_halt_as_soon_as_faults_are_few_and_poll_again_without_a_trial() {
    let mut scene = Scene::new();
    scene.run(GAINS, Duration::from_millis(500));
    assert!(scene.is_held());
    scene.step(COMPUTES, 1);
    assert!(!scene.is_held());
    scene.run(COMPUTES, Duration::from_millis(300));
    scene.step(GAINS, 1);
    assert!(scene.is_held());
    assert_eq!(scene.log().trials, 1);
}

#[test]
fn few_faults_are_not_worth_a_trial() {
    let mut scene = Scene::new();
    scene.run(COMPUTES, SECOND);
    assert_eq!(scene.log(), IdlePollLog::default());
}

#[test]
fn an_agent_without_a_processor_judges_nothing() {
    let mut scene = Scene::new();
    scene.step(GAINS, 1);
    scene.step(GAINS, 1);
    assert!(scene.is_held(), "a trial");
    scene.step(GAINS, 4);
    assert!(!scene.is_held());
    assert_eq!(scene.log().trials, 0);
}

#[test]
fn without_the_right_nothing_is_asked_for() {
    let idle_poll = IdlePoll::new();
    assert_eq!(idle_poll.due(), Time::NEVER);
    assert_eq!(idle_poll.wake_at(), Time::NEVER);
}

#[test]
fn a_request_that_is_not_heard_is_none() {
    let mut scene = Scene::new();
    scene.run(GAINS, Duration::from_millis(500));
    let (unwritable, _) = rustix::pipe::pipe().unwrap();
    scene.idle_poll.request = Some(unwritable);
    // It would end it now.
    scene.idle_poll.tick(scene.now + SECOND, scene.faults);
    assert!(!scene.is_held());
    assert_eq!(scene.idle_poll.wake_at(), Time::NEVER);
}

#[test]
fn whoever_holds_the_request_wakes_up_to_end_it() {
    let mut scene = Scene::new();
    assert_eq!(scene.idle_poll.wake_at(), Time::NEVER);
    scene.run(GAINS, Duration::from_millis(500));
    assert_eq!(scene.idle_poll.wake_at(), scene.idle_poll.due());
}
