//! The simulator's model of the kernel against the kernel: random sequences of calls, each done by
//! both, compared step by step: what is reported in which order, what every operation of
//! userfaultfd answers, what is read, and which pages are present.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

use legato_base::{PageNumber, Random};
use legato_pager::{EvictError, FillError, FrameIndex, PageRange, SpaceEvent, SpaceId, SpacePage};
use legato_sim::world::{Machine, Operation, Outcome, PageState, Progress};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const SEQUENCES: u64 = 400;
const STEPS: u32 = 60;
/// Pages that calls are about, and pages that moved mappings may reach.
const NEAR: u64 = 40;
const ARENA: u64 = 60;
const FRAMES: u32 = 8;
const SPACES: usize = 5;

#[test]
fn the_model_answers_as_the_kernel_does() {
    let first = number("DIFFERENTIAL_FIRST", 0);
    let sequences: Vec<_> = (first..first + number("DIFFERENTIAL_SEQUENCES", SEQUENCES))
        .map(Sequence::of)
        .collect();
    let found = on_the_kernel(&sequences);
    let expected = sequences.iter().flat_map(|sequence| {
        let seed = sequence.seed;
        let lines = sequence.expected.iter().enumerate();
        lines.map(move |(step, line)| (seed, step, line))
    });
    let mut different = std::collections::BTreeSet::new();
    for ((seed, step, expected), found) in expected.zip(&found) {
        let found = normal(found);
        if *expected != found && different.insert(seed) {
            println!("sequence {seed}, step {step}:\n  model  {expected}\n  kernel {found}");
        }
    }
    assert!(
        different.is_empty(),
        "{} of {} sequences differ",
        different.len(),
        sequences.len()
    );
    let steps: usize = sequences.iter().map(|sequence| sequence.steps.len()).sum();
    assert_eq!(found.len(), steps, "the kernel's side stopped early");
    println!("{} sequences, {steps} steps", sequences.len());
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The kernel's side, which another package has and `scripts/test` has built.
fn kernel_steps() -> PathBuf {
    let directory = std::env::var_os("LEGATO_TEST_PROGRAMS");
    let directory = directory.expect("LEGATO_TEST_PROGRAMS: start the tests with scripts/test");
    PathBuf::from(directory).join("kernel_steps")
}

/// What the kernel's side prints.
fn on_the_kernel(sequences: &[Sequence]) -> Vec<String> {
    let mut input = String::new();
    for sequence in sequences {
        input += &format!("begin\n{}\nend\n", sequence.steps.join("\n"));
    }
    let mut child = Command::new(kernel_steps())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // A side that ends early fails the comparison, with more to tell.
    let _ = writer.join().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Errors that Legato does not tell apart become one, and so do neighbouring removals: Linux
/// reports one for each of its mappings.
fn normal(line: &str) -> String {
    let line = line
        .replace("out EINVAL", "out fixed")
        .replace("out EFAULT", "out fixed");
    let mut items: Vec<String> = Vec::new();
    for item in line.split("; ") {
        let joined = items.last().and_then(|last| joined(last, item));
        match joined {
            Some(joined) => *items.last_mut().unwrap() = joined,
            None => items.push(item.to_owned()),
        }
    }
    items.join("; ")
}

/// One removal for two, if the second begins where the first ends.
fn joined(left: &str, right: &str) -> Option<String> {
    let (head, left) = left.split_at(left.rfind("removed ")?);
    let numbers = |text: &str| -> Option<Vec<u64>> {
        let words = text.strip_prefix("removed ")?.split(' ');
        words.map(|word| word.parse().ok()).collect()
    };
    let (left, right) = (numbers(left)?, numbers(right)?);
    let follows = left[0] == right[0] && left[1] + left[2] == right[1];
    follows.then(|| {
        format!(
            "{head}removed {} {} {}",
            left[0],
            left[1],
            left[2] + right[2]
        )
    })
}

/// A space as the generator sees it.
#[derive(Clone, Debug)]
struct View {
    alive: bool,
    /// Somebody reads its events.
    served: bool,
    /// Which `mmap` each page comes from; 0 for none.
    mapping: [u32; ARENA as usize],
    locked: [bool; ARENA as usize],
}

/// Steps, and what the model says of them.
struct Sequence {
    seed: u64,
    steps: Vec<String>,
    expected: Vec<String>,
    random: Random,
    machine: Machine,
    views: Vec<View>,
    full: [bool; FRAMES as usize],
    pinned: Vec<u64>,
    last_mapping: u32,
    last_value: u64,
    /// A call of the program has begun and not ended.
    calling: bool,
    said: String,
}

impl Sequence {
    fn of(seed: u64) -> Self {
        let own = View {
            alive: true,
            served: true,
            mapping: [0; ARENA as usize],
            locked: [false; ARENA as usize],
        };
        let mut sequence = Self {
            seed,
            steps: Vec::new(),
            expected: Vec::new(),
            random: Random::from_seed(seed),
            machine: Machine::new(FRAMES),
            views: vec![own],
            full: [false; FRAMES as usize],
            pinned: Vec::new(),
            last_mapping: 0,
            last_value: 0,
            calling: false,
            said: String::new(),
        };
        sequence.map(0, PageRange::new(PageNumber(4), 8));
        sequence.serve_step("register 0 4 8".to_owned());
        for _ in 0..STEPS {
            sequence.take_any_step();
        }
        sequence
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn say(&mut self, what: &str) {
        self.said += &format!(" {what};");
    }

    fn any_space(&mut self) -> usize {
        let place = self.below(2 * self.views.len() as u64) as usize;
        let alive = self.views.get(place).is_some_and(|view| view.alive);
        if alive { place } else { 0 }
    }

    fn any_range(&mut self) -> PageRange {
        let start = self.below(NEAR);
        let count = 1 + self.below(6);
        PageRange::new(PageNumber(start), count)
    }

    /// Neighbours from a random mapped page on that Linux has in one mapping.
    fn any_uniform(&mut self, space: usize) -> Option<PageRange> {
        let start = self.any_mapped(space)?;
        let count = 1 + self.below(6);
        let alike = |page: u64| {
            let view = &self.views[space];
            let registered = |page| self.machine.is_registered(space_page(space, page));
            page < ARENA
                && view.mapping[page as usize] == view.mapping[start as usize]
                && view.locked[page as usize] == view.locked[start as usize]
                && registered(page) == registered(start)
        };
        let run = (start..start + count).take_while(|&page| alike(page));
        Some(PageRange::new(PageNumber(start), run.count() as u64))
    }

    fn any_mapped(&mut self, space: usize) -> Option<u64> {
        let mapping = self.views[space].mapping;
        let mapped: Vec<u64> = (0..ARENA)
            .filter(|&page| mapping[page as usize] != 0)
            .collect();
        let place = self.below(mapped.len().max(1) as u64) as usize;
        mapped.get(place).copied()
    }

    fn take_any_step(&mut self) {
        let space = self.any_space();
        match self.below(100) {
            0..6 => {
                let range = self.any_range();
                self.map(space, range);
            }
            6..11 => {
                let range = self.any_range();
                self.view_forget(space, range);
                let text = format!("unmap {space} {}", range_text(range));
                self.call(space, Operation::Unmap(range), text);
            }
            11..16 => self.remap(space),
            16..30 => self.advise(space),
            30..34 => self.fork(space),
            34..36 => self.exit(space),
            36..44 => self.register(space),
            44..64 => self.access(space),
            _ => {
                let step = self.any_service();
                self.serve_step(step);
            }
        }
    }

    fn map(&mut self, space: usize, range: PageRange) {
        self.view_forget(space, range);
        self.last_mapping += 1;
        for page in range.start.0..range.end().0 {
            self.views[space].mapping[page as usize] = self.last_mapping;
        }
        let text = format!("map {space} {}", range_text(range));
        self.call(space, Operation::Map(range), text);
    }

    fn view_forget(&mut self, space: usize, range: PageRange) {
        for page in range.start.0..range.end().0 {
            self.views[space].mapping[page as usize] = 0;
            self.views[space].locked[page as usize] = false;
        }
    }

    /// Linux makes a mapping of its own of the range, and may leave it so.
    fn split(&mut self, space: usize, range: PageRange) {
        let mapping = &mut self.views[space].mapping;
        let whole = mapping[range.start.0 as usize];
        self.last_mapping += 2;
        for page in range.start.0..ARENA {
            let place = &mut mapping[page as usize];
            if *place == whole {
                *place = self.last_mapping - u32::from(range.contains(PageNumber(page)));
            }
        }
    }

    fn remap(&mut self, space: usize) {
        let Some(from) = self.any_uniform(space) else {
            return;
        };
        let grow = self.below(2) * self.below(4);
        let to = PageRange::new(PageNumber(self.below(NEAR)), from.count + grow);
        let overlap = from.start.0 < to.end().0 && to.start.0 < from.end().0;
        let pinned = space == 0
            && self
                .pinned
                .iter()
                .any(|&page| from.contains(PageNumber(page)));
        if overlap || pinned {
            return;
        }
        let locked = self.views[space].locked[from.start.0 as usize];
        self.last_mapping += 1;
        self.view_forget(space, from);
        self.view_forget(space, to);
        for page in to.start.0..to.end().0 {
            self.views[space].mapping[page as usize] = self.last_mapping;
            self.views[space].locked[page as usize] = locked;
        }
        let text = format!("remap {space} {} {} {grow}", range_text(from), to.start.0);
        let to = to.start;
        self.call(space, Operation::Remap { from, to, grow }, text);
    }

    fn advise(&mut self, space: usize) {
        let Some(range) = self.any_uniform(space) else {
            return;
        };
        let (name, operation) = match self.below(10) {
            0..5 => ("dontneed", Operation::DontNeed(range)),
            5..8 => ("free", Operation::Free(range)),
            8 => ("lock", Operation::Lock(range)),
            _ => ("unlock", Operation::Unlock(range)),
        };
        if let Operation::Lock(_) | Operation::Unlock(_) = operation {
            self.split(space, range);
            for page in range.start.0..range.end().0 {
                self.views[space].locked[page as usize] = name == "lock";
            }
        }
        self.call(
            space,
            operation,
            format!("{name} {space} {}", range_text(range)),
        );
    }

    fn fork(&mut self, space: usize) {
        if self.views.len() == SPACES {
            return;
        }
        let served = self.call(space, Operation::Fork, format!("fork {space}"));
        let mut view = self.views[space].clone();
        view.locked.fill(false);
        self.views.push(View { served, ..view });
        // The line was made before the child was known.
        let pages = self.pages();
        let line = self.expected.last_mut().unwrap();
        let end = line.find(" 0=").unwrap();
        line.truncate(end);
        *line += &pages;
    }

    fn exit(&mut self, space: usize) {
        if space == 0 {
            return;
        }
        self.views[space].alive = false;
        self.call(space, Operation::Exit, format!("exit {space}"));
    }

    fn register(&mut self, space: usize) {
        let Some(range) = self.any_uniform(space).filter(|_| self.views[space].served) else {
            return;
        };
        self.split(space, range);
        self.serve_step(format!("register {space} {}", range_text(range)));
    }

    fn access(&mut self, space: usize) {
        let Some(page) = self.any_mapped(space) else {
            return;
        };
        // Pages of zeros that were only read may be shared by fork or left out: both read zero.
        let here = space_page(space, page);
        let unread = self.machine.page(here.space(), here.page()) == PageState::Missing
            && !self.machine.is_registered(here);
        let (text, operation) = if !unread && self.below(2) == 0 {
            (
                format!("read {space} {page}"),
                Operation::Read(PageNumber(page)),
            )
        } else {
            self.last_value += 1;
            let value = self.last_value;
            let operation = Operation::Write(PageNumber(page), value);
            (format!("write {space} {page} {value}"), operation)
        };
        self.call(space, operation, text);
    }

    /// A call of the program. True if an event came of it.
    fn call(&mut self, space: usize, operation: Operation, text: String) -> bool {
        let (mut text, mut announced) = (text, false);
        self.calling = true;
        let mut progress = self.machine.begin(SpaceId(space as u32), operation);
        loop {
            match progress {
                Progress::Finished(outcome) => break self.say(&outcome_text(outcome)),
                Progress::Exited => break self.say("ended"),
                Progress::Announced => {
                    announced = true;
                    text += " ! before";
                    for _ in 0..self.below(3) {
                        let step = self.any_service();
                        text += &format!(" ! {step}");
                        self.serve(&step);
                    }
                    self.say_events();
                }
                Progress::Faulted => {
                    let (Operation::Read(page) | Operation::Write(page, _)) = operation else {
                        unreachable!("only accesses fault");
                    };
                    self.machine.read();
                    self.say(&format!("fault {space} {}", page.0));
                    let answer = self.any_answer(space, page.0);
                    text += &format!(" ! after ! {answer}");
                    self.serve(&answer);
                    // The kernel's side makes sure that nothing hangs.
                    let _ = self.machine.zero(space_page(space, page.0));
                }
            }
            progress = self.machine.resume();
        }
        self.calling = false;
        self.end_step(text);
        announced
    }

    fn say_events(&mut self) {
        for event in self.machine.read().events {
            let text = match event {
                SpaceEvent::Removed { space, range } => {
                    format!("removed {} {}", space.0, range_text(range))
                }
                SpaceEvent::Remapped { space, from, to } => {
                    format!("remapped {} {} {}", space.0, range_text(from), to.0)
                }
                SpaceEvent::Forked { parent, .. } => format!("forked {}", parent.0),
            };
            self.say(&text);
        }
    }

    fn any_answer(&mut self, space: usize, page: u64) -> String {
        let full = (0..FRAMES as usize).find(|&frame| self.full[frame]);
        match (self.below(5), full) {
            (0, Some(frame)) if space == 0 => format!("in 0 {page} {frame}"),
            (1, _) => format!("poison {space} {page}"),
            (2 | 3, _) => {
                self.last_value += 1;
                format!("copy {space} {page} {}", self.last_value)
            }
            _ => format!("zero {space} {page}"),
        }
    }

    /// Something that whoever serves memory may do at any time.
    fn any_service(&mut self) -> String {
        let space = (self.below(2 * self.views.len() as u64) as usize).min(self.views.len() - 1);
        let space = if self.views[space].served { space } else { 0 };
        let page = match self.any_mapped(space) {
            Some(page) if self.below(8) > 0 => page,
            _ => self.below(ARENA),
        };
        let full = (0..FRAMES as usize).find(|&frame| self.full[frame]);
        let empty = (0..FRAMES as usize).find(|&frame| !self.full[frame]);
        let present = self.machine.page(SpaceId::OWN, PageNumber(page)) == PageState::Present;
        match (self.below(10), full, empty) {
            (0..4, _, Some(frame)) => format!("out 0 {page} {frame}"),
            (4 | 5, Some(frame), _) => format!("in 0 {page} {frame}"),
            (6, ..)
                if !self.calling
                    && present
                    && self.pinned.len() < 2
                    && !self.pinned.contains(&page) =>
            {
                format!("pin 0 {page}")
            }
            (7, ..) if !self.calling && !self.pinned.is_empty() => {
                format!("unpin 0 {}", self.pinned[0])
            }
            _ => self.any_answer(space, page),
        }
    }

    fn serve_step(&mut self, step: String) {
        self.serve(&step);
        self.end_step(step);
    }

    /// A step of whoever serves the memory.
    fn serve(&mut self, step: &str) {
        let words: Vec<&str> = step.split(' ').collect();
        let number = |index: usize| {
            words
                .get(index)
                .map_or(0, |word| word.parse::<u64>().unwrap())
        };
        let (space, first, second) = (number(1) as usize, number(2), number(3));
        let page = space_page(space, first);
        let frame = FrameIndex(second as u32);
        let result = match words[0] {
            "register" => {
                let range = PageRange::new(PageNumber(first), second);
                self.machine.register(SpaceId(space as u32), range);
                "ok"
            }
            "out" => match self.machine.move_out(page, frame) {
                Ok(value) => {
                    self.full[second as usize] = true;
                    self.say("out ok");
                    return self.say(&format!("value {value}"));
                }
                Err(EvictError::Again) => "EAGAIN",
                Err(EvictError::Pinned) => "EBUSY",
                Err(EvictError::Fixed | EvictError::Locked { .. }) => "fixed",
                Err(EvictError::Absent) => "ENOENT",
            },
            "in" => match self.machine.move_in(frame, page) {
                Ok(true) => {
                    self.full[second as usize] = false;
                    "ok"
                }
                Ok(false) => "copied",
                Err(error) => fill_text(error),
            },
            "copy" => filled(self.machine.copy(page, second)),
            "zero" => filled(self.machine.zero(page)),
            "poison" => filled(self.machine.poison(page)),
            "pin" => {
                self.pinned.push(first);
                self.machine
                    .begin(SpaceId::OWN, Operation::Pin(PageNumber(first)));
                "ok"
            }
            _ => {
                self.pinned.retain(|&pinned| pinned != first);
                self.machine
                    .begin(SpaceId::OWN, Operation::Unpin(PageNumber(first)));
                "ok"
            }
        };
        self.say(&format!("{} {result}", words[0]));
    }

    fn end_step(&mut self, step: String) {
        let said = std::mem::take(&mut self.said);
        let pages = self.pages();
        self.expected.push(format!("{step} ->{said}{pages}"));
        self.steps.push(step);
    }

    fn pages(&self) -> String {
        let alive = self.views.iter().enumerate().filter(|(_, view)| view.alive);
        alive
            .map(|(index, _)| {
                let state = |page| match self.machine.page(SpaceId(index as u32), PageNumber(page))
                {
                    PageState::Missing => '.',
                    PageState::Present => 'P',
                    PageState::Poisoned => 'S',
                };
                let pages: String = (0..ARENA + 4).map(state).collect();
                format!(" {index}={}", pages.trim_end_matches('.'))
            })
            .collect()
    }
}

fn space_page(space: usize, page: u64) -> SpacePage {
    SpacePage::new(SpaceId(space as u32), PageNumber(page))
}

fn range_text(range: PageRange) -> String {
    format!("{} {}", range.start.0, range.count)
}

fn outcome_text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Done | Outcome::Child(_) => "done".to_owned(),
        Outcome::Value(value) => format!("value {value}"),
        Outcome::BusError => "SIGBUS".to_owned(),
        Outcome::Invalid => "EINVAL".to_owned(),
    }
}

fn filled(result: Result<(), FillError>) -> &'static str {
    result.map_or_else(fill_text, |()| "ok")
}

const fn fill_text(error: FillError) -> &'static str {
    match error {
        FillError::Again => "EAGAIN",
        FillError::Present => "EEXIST",
        FillError::Gone | FillError::Empty => "ENOENT",
        FillError::SpaceGone => "ESRCH",
        FillError::CopyOnly => "EINVAL",
        FillError::NoMemory => "ENOMEM",
    }
}
