//! Memory whose agent has ended and that is used still, if only by a process that is just ending.

use legato_base::timeouts;
use legato_pager::uffd::HeldMemory;
use std::time::{Duration, Instant};

/// So long whoever uses such memory has to end by itself, or to be killed.
const GRACE: Duration = timeouts::UNSERVED.to_std();
/// How often it is looked whether memory is used still; no event tells.
const LOOK: Duration = Duration::from_millis(10);

/// All such memory of a run.
#[derive(Debug, Default)]
pub(crate) struct Unserved {
    list: Vec<Part>,
}

/// The memory of a process, or of a forked child.
#[derive(Debug)]
struct Part {
    memory: HeldMemory,
    /// The program that the agent was for.
    program: String,
    refused_from: Instant,
    told: bool,
}

impl Unserved {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        (!self.list.is_empty()).then(|| now + LOOK)
    }

    /// The agent for `program` has ended.
    pub(crate) fn add(
        &mut self,
        program: &str,
        memory: impl Iterator<Item = HeldMemory>,
        now: Instant,
    ) {
        let used = memory.filter(HeldMemory::is_used);
        self.list.extend(used.map(|memory| Part {
            memory,
            program: program.to_owned(),
            refused_from: now + GRACE,
            told: false,
        }));
    }

    // P-30
    /// Gives up what is not used any more, and refuses accesses to what is used for long. Returns what
    /// the user should know.
    pub(crate) fn turn(&mut self, now: Instant) -> Vec<String> {
        self.list.retain(|part| part.memory.is_used());
        let (mut remarks, mut forked) = (Vec::new(), Vec::new());
        for part in self.list.iter_mut().filter(|part| now >= part.refused_from) {
            if !std::mem::replace(&mut part.told, true) {
                remarks.push(format!(
                    "{}: its agent has ended, and another process uses its memory still: whoever touches a \
                     far page there gets SIGBUS; see who killed the agent, and end that process",
                    part.program
                ));
            }
            let children = part.memory.refuse_accesses().into_iter();
            forked.extend(children.map(|memory| Part {
                memory,
                program: part.program.clone(),
                ..*part
            }));
        }
        self.list.append(&mut forked);
        remarks
    }
}
