//! The rule, case by case, and the tree with an injector that does as it is told.

use super::facts::marks_in;
use super::*;
use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

fn pid(number: i32) -> Pid {
    Pid::from_raw(number).unwrap()
}

/// A process that has been there for long, dynamic, and with nothing of an agent in it.
fn old() -> Facts {
    Facts {
        looks: 3,
        age: OWN_AGENT,
        mappings: Some(Mappings::default()),
        ..Facts::default()
    }
}

fn served(server: Option<Pid>) -> Option<Mappings> {
    Some(Mappings {
        served: true,
        server,
    })
}

#[test]
fn a_process_without_any_agent_gets_one() {
    assert_eq!(decide(&old()), Verdict::Inject(Entry::Agent));
}

#[test]
fn a_forked_child_that_is_served_gets_a_hand() {
    let program = pid(7);
    let facts = Facts {
        mappings: served(Some(program)),
        ..old()
    };
    assert_eq!(decide(&facts), Verdict::Inject(Entry::Hand { program }));
    let facts = Facts {
        mappings: served(None),
        ..old()
    };
    assert_eq!(decide(&facts), Verdict::Wait);
}

#[test]
fn a_young_process_is_left_alone() {
    let facts = Facts { looks: 0, ..old() };
    assert_eq!(decide(&facts), Verdict::Wait);
    let facts = Facts {
        may_bring_agent: true,
        age: OWN_AGENT - Duration::from_millis(1),
        ..old()
    };
    assert_eq!(decide(&facts), Verdict::Wait, "its own agent may yet come");
    let facts = Facts {
        age: OWN_AGENT,
        ..facts
    };
    assert_eq!(decide(&facts), Verdict::Inject(Entry::Agent), "lost");
}

/// The memory nodes are there as long as anybody may yet need them, and no longer.
#[test]
fn who_may_yet_be_attended_is_waited_for() {
    let young = Facts {
        may_bring_agent: true,
        age: Duration::ZERO,
        ..old()
    };
    let cases = [
        (true, Facts { looks: 0, ..old() }),
        (true, young.clone()),
        (true, old()),
        (
            true,
            Facts {
                asked: true,
                ..old()
            },
        ),
        (
            false,
            Facts {
                refused: Some(InjectionError::TracedByAnother),
                ..young
            },
        ),
        (
            false,
            Facts {
                foreign: true,
                ..old()
            },
        ),
        (
            false,
            Facts {
                shares_memory: true,
                ..old()
            },
        ),
        (
            false,
            Facts {
                ended: true,
                ..old()
            },
        ),
    ];
    for (expected, facts) in cases {
        assert_eq!(facts.may_be_attended(decide(&facts)), expected, "{facts:?}");
    }
    let mut scene = Scene::new();
    let begin = scene.now;
    for _ in 0..2 {
        scene.look(&[]);
        assert!(!scene.tree.is_settled(begin));
    }
}

#[test]
fn a_process_whose_threads_could_not_be_stopped_is_asked_again() {
    let mut scene = Scene::new();
    scene.look(&[]);
    scene.look(&[]);
    scene.answer(Err(InjectionError::Busy));
    scene.look(&[]);
    assert_eq!(scene.asked(), [Entry::Agent; 2]);
}

#[test]
fn a_vfork_child_is_left_alone() {
    let facts = Facts {
        shares_memory: true,
        ..old()
    };
    assert_eq!(decide(&facts), Verdict::Wait);
}

#[test]
fn who_shared_memory_a_moment_ago_may_be_a_hand() {
    let facts = Facts {
        may_be_hand: true,
        mappings: served(Some(pid(7))),
        ..old()
    };
    assert_eq!(decide(&facts), Verdict::Wait);
}

#[test]
fn nothing_is_put_into_the_dead_or_the_attended_or_twice() {
    let cases = [
        (
            Verdict::Leave,
            Facts {
                ended: true,
                ..old()
            },
        ),
        (
            Verdict::Leave,
            Facts {
                attended: true,
                ..old()
            },
        ),
        (
            Verdict::Wait,
            Facts {
                asked: true,
                ..old()
            },
        ),
    ];
    for (verdict, facts) in cases {
        assert_eq!(decide(&facts), verdict);
    }
}

#[test]
fn mappings_are_read_only_where_they_decide() {
    let facts = Facts {
        mappings: None,
        ..old()
    };
    assert_eq!(decide(&facts), Verdict::Inspect);
    let facts = Facts {
        traced: true,
        age: OWN_AGENT - Duration::from_millis(1),
        ..facts
    };
    assert_eq!(decide(&facts), Verdict::Wait);
}

/// However small it is. Unnamed: whoever was refused, because how much it had was not asked then.
#[test]
fn what_cannot_be_served_is_mentioned() {
    let traced = Facts {
        traced: true,
        age: OWN_AGENT - Duration::from_millis(1),
        ..old()
    };
    assert_eq!(decide(&traced), Verdict::Wait, "its agent may yet come");
    let cases = [
        (
            Why::Injection(InjectionError::TracedByAnother),
            Facts {
                age: OWN_AGENT,
                ..traced
            },
        ),
        (
            Why::Injection(InjectionError::Filtered),
            Facts {
                refused: Some(InjectionError::Filtered),
                mappings: None,
                ..old()
            },
        ),
        (
            Why::Injection(InjectionError::NotPermitted),
            Facts {
                foreign: true,
                age: Duration::ZERO,
                ..old()
            },
        ),
        (
            Why::Valgrind,
            Facts {
                under_valgrind: true,
                ..old()
            },
        ),
    ];
    for (why, facts) in cases {
        assert_eq!(decide(&facts), Verdict::Mention(why));
        let said = Facts {
            runs_without: true,
            ..facts
        };
        assert_eq!(decide(&said), Verdict::Leave);
    }
}

#[test]
fn marks_are_found_in_maps() {
    let maps = "\
55aa00000000-55aa00001000 r--p 00000000 fe:00 7 /usr/bin/sleep
7f0000001000-7f0000002000 ---s 00000000 00:01 9 /memfd:legato-stats (deleted)
7f0000002000-7f0000003000 r-xp 00001000 00:01 10 /memfd:legato-agent.so (deleted)
VmFlags: rd mr mw me
7f0000008000-7f0000009000 ---s 00000000 00:01 1764739 /memfd:legato-stats (deleted)
7f0000010000-7f0000011000 rw-p 00000000 00:00 0
";
    assert_eq!(marks_in(maps), [9, 1_764_739]);
}

/// Says yes or no, and remembers what it was asked.
#[derive(Debug, Default)]
struct Script {
    asked: Vec<(Pid, Entry)>,
    answers: Vec<Injected>,
}

#[derive(Clone, Debug, Default)]
struct Scripted(Rc<RefCell<Script>>);

impl Inject for Scripted {
    fn inject(&mut self, target: Target, entry: Entry) {
        self.0.borrow_mut().asked.push((target.pid(), entry));
    }

    fn poll(&mut self) -> Option<Injected> {
        self.0.borrow_mut().answers.pop()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A real process below this one, which waits for its end.
struct Waiting(Child);

impl Waiting {
    /// It has begun when it says what it is told: until then it may still be being executed, and is
    /// left alone for that.
    fn start() -> Self {
        let child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut waiting = Self(child.unwrap());
        let mut said = [0; 1];
        waiting.0.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        let output = waiting.0.stdout.as_mut().unwrap();
        output.read_exact(&mut said).unwrap();
        waiting
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Scene {
    script: Scripted,
    tree: Tree,
    child: Waiting,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let (script, now) = (Scripted::default(), Instant::now());
        Self {
            tree: Tree::new(Box::new(script.clone()), now),
            script,
            child: Waiting::start(),
            now,
        }
    }

    fn look(&mut self, attended: &[Pid]) -> Vec<LocalProcess> {
        self.now = self.tree.deadline();
        self.tree.turn(attended, &[], self.now)
    }

    /// How often something was put into the child. Tests beside this one have children too.
    fn asked(&self) -> Vec<Entry> {
        let script = self.script.0.borrow();
        let of_child = script
            .asked
            .iter()
            .filter(|(pid, _)| *pid == self.child.pid());
        of_child.map(|&(_, entry)| entry).collect()
    }

    fn answer(&mut self, result: Result<(), InjectionError>) {
        let pid = self.child.pid();
        let answer = Injected { pid, result };
        self.script.0.borrow_mut().answers.push(answer);
    }
}

#[test]
fn a_process_is_entered_at_the_second_look_and_once() {
    let mut scene = Scene::new();
    scene.look(&[]);
    assert_eq!(scene.asked(), []);
    scene.look(&[]);
    assert_eq!(scene.asked(), [Entry::Agent]);
    scene.look(&[]);
    assert!(scene.tree.is_injected(scene.child.pid()));
    scene.answer(Ok(()));
    scene.look(&[]);
    assert_eq!(scene.asked(), [Entry::Agent]);
}

#[test]
fn an_attended_process_is_left_alone() {
    let mut scene = Scene::new();
    let child = scene.child.pid();
    for _ in 0..3 {
        scene.look(&[child]);
    }
    assert_eq!(scene.asked(), []);
}

#[test]
fn a_process_that_refused_is_named_and_not_asked_again() {
    let mut scene = Scene::new();
    scene.look(&[]);
    scene.look(&[]);
    scene.answer(Err(InjectionError::Filtered));
    let mut named = scene.look(&[]);
    named.extend(scene.look(&[]));
    assert_eq!(scene.asked(), [Entry::Agent]);
    let child = scene.child.pid().as_raw_pid();
    named.retain(|process| process.pid == child);
    let expected = LocalProcess {
        pid: child,
        command: "cat".into(),
        why: InjectionError::Filtered.to_string(),
    };
    assert_eq!(named, [expected], "once");
}

#[test]
fn a_process_that_was_missed_is_asked_again() {
    let mut scene = Scene::new();
    scene.look(&[]);
    scene.look(&[]);
    scene.answer(Err(InjectionError::Gone));
    scene.look(&[]);
    assert_eq!(scene.asked(), [Entry::Agent; 2]);
}

#[test]
fn a_hand_attends_its_child_for_as_long_as_it_lives() {
    let mut scene = Scene::new();
    scene.look(&[]);
    let hand = Waiting::start();
    let child = scene.child.pid();
    scene.tree.note_hand(Some(child), hand.pid());
    scene.look(&[]);
    assert_eq!(scene.asked(), []);
    drop(hand);
    scene.look(&[]);
    assert_eq!(scene.asked(), [Entry::Agent]);
}

/// Lost: a hand was stopped, and a hand put into it, while its agent waited for its answer.
#[test]
fn a_hand_whose_child_has_ended_is_left_alone() {
    let mut scene = Scene::new();
    scene.look(&[]);
    let child = Waiting::start();
    scene.look(&[scene.child.pid()]);
    scene.tree.note_hand(Some(child.pid()), scene.child.pid());
    drop(child);
    for _ in 0..3 {
        scene.look(&[]);
    }
    assert_eq!(scene.asked(), []);
    // Nor one whose child had ended when it connected.
    let mut scene = Scene::new();
    scene.look(&[]);
    scene.tree.note_hand(None, scene.child.pid());
    scene.look(&[]);
    assert_eq!(scene.asked(), []);
}

#[test]
fn looks_become_rare_when_nothing_happens() {
    let mut scene = Scene::new();
    let child = scene.child.pid();
    scene.look(&[child]);
    // Tests beside this one start processes, which are news.
    for _ in 0..100 {
        scene.look(&[child]);
        if scene.tree.pause == SCAN_MAX {
            break;
        }
    }
    assert!(scene.tree.deadline() <= scene.now + SCAN_MAX);
    assert!(scene.tree.deadline() >= scene.now + SCAN_MIN);
}
