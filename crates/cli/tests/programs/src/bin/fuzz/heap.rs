//! Memory of `brk`, which the C library's own allocations share. Only the main thread takes part,
//! while no other runs, and gives back only what it has just taken, without an allocation between.

use crate::calls;
use crate::content::{PageBytes, Stamp, describe, render_stamp};
use crate::worker::Failure;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;

/// Pages that are taken at a time, at most.
const PAGES_MAX: u64 = 256;

#[derive(Debug, Default)]
pub(crate) struct Heap {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    address: usize,
    pages: usize,
    stamp: Stamp,
}

impl Heap {
    /// Takes some memory for good, and some for a moment.
    pub(crate) fn use_some(&mut self, random: &mut Random, stamp: Stamp) -> Result<(), Failure> {
        self.check()?;
        self.parts.reserve(1);
        let pages = 1 + random.below(PAGES_MAX) as usize;
        let part = Part::take(pages, stamp).map_err(failed)?;
        part.check()?;
        self.parts.push(part);

        let more = 1 + random.below(PAGES_MAX) as usize;
        let part = Part::take(more, stamp).map_err(failed)?;
        part.check()?;
        let back = -((more * PAGE_SIZE) as isize);
        calls::grow_heap(back).map_err(failed)?;
        let again = Part {
            stamp: 0,
            ..Part::take(more, 0).map_err(failed)?
        };
        again.check()?;
        calls::grow_heap(back).map_err(failed)?;
        self.check()
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.parts.iter().try_for_each(Part::check)
    }
}

impl Part {
    /// New memory, with a stamp all over it if that is not zero.
    fn take(pages: usize, stamp: Stamp) -> Result<Self, i32> {
        let address = calls::grow_heap((pages * PAGE_SIZE) as isize)?;
        let part = Self {
            address,
            pages,
            stamp,
        };
        if stamp != 0 {
            for page in 0..pages {
                calls::store(address + page * PAGE_SIZE, &part.expected());
            }
        }
        Ok(part)
    }

    /// The same in every page, in bytes from the part's beginning on.
    fn expected(&self) -> PageBytes {
        let mut bytes = [0; PAGE_SIZE];
        render_stamp(self.stamp, 0, &mut bytes);
        bytes
    }

    fn check(&self) -> Result<(), Failure> {
        let (mut found, expected): (PageBytes, PageBytes) = ([0; PAGE_SIZE], self.expected());
        for page in 0..self.pages {
            let address = self.address + page * PAGE_SIZE;
            calls::load(address, &mut found);
            if found != expected {
                let text = describe(&found, &expected, 0);
                return Err(Failure(format!(
                    "WRONG CONTENT of the heap at {address:#x}: {text}"
                )));
            }
        }
        Ok(())
    }
}

fn failed(errno: i32) -> Failure {
    Failure(format!("brk: errno {errno}"))
}
