//! Blocks of up to half a page: of each size there are slabs, in which all blocks have that size.

use super::pages::{Pages, SLAB_PAGES};
use core::alloc::Layout;
use legato_base::PAGE_SIZE;

const SLAB_BYTES: usize = SLAB_PAGES as usize * PAGE_SIZE;
/// What sizes are multiples of.
const GRAIN: usize = 16;
const BLOCK_MAX: usize = PAGE_SIZE / 2;
/// Powers of two from the grain on, and from 64 on what lies between two of them. (Each size has a page at
/// least, in each process.)
const SIZES: [u16; 13] = [
    16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
];
const _: () = assert!(SIZES[SIZES.len() - 1] as usize == BLOCK_MAX);
const BLOCKS: [u16; SIZES.len()] = {
    let mut blocks = [0; SIZES.len()];
    let mut class = 0;
    while class < blocks.len() {
        blocks[class] = (SLAB_BYTES / SIZES[class] as usize) as u16;
        class += 1;
    }
    blocks
};
const HALVED_FROM: usize = 64;

/// A size of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u8);

impl Class {
    /// None if the layout's blocks are larger.
    pub(super) const fn of(layout: Layout) -> Option<Self> {
        let size = match layout.align() {
            ..=GRAIN => layout.size(),
            // Slabs are aligned, and so is in them what is as large as a power of two.
            align if layout.size() <= align => align,
            _ => match layout.size().checked_next_power_of_two() {
                Some(size) => size,
                None => return None,
            },
        };
        if size > BLOCK_MAX {
            return None;
        }
        if size <= HALVED_FROM {
            let doublings = size.div_ceil(GRAIN).next_power_of_two().ilog2();
            return Some(Self(doublings as u8));
        }
        let doubling = (size - 1).ilog2();
        let is_upper_half = (size - 1) >> (doubling - 1) & 1 == 1;
        let before = 3 + 2 * (doubling - HALVED_FROM.ilog2());
        Some(Self(before as u8 + is_upper_half as u8))
    }

    const fn size(self) -> usize {
        SIZES[self.0 as usize] as usize
    }

    /// Of a slab.
    const fn blocks(self) -> u16 {
        BLOCKS[self.0 as usize]
    }
}

/// The slabs of each size that have room.
#[derive(Debug)]
pub(super) struct Slabs {
    /// Numbers of slabs, from 1; 0 is none.
    with_room: [u32; SIZES.len()],
}

impl Slabs {
    pub(super) const fn new() -> Self {
        Self {
            with_room: [0; SIZES.len()],
        }
    }

    /// A block; None if there is no memory.
    pub(super) fn take(&mut self, class: Class, pages: &mut Pages) -> Option<*mut u8> {
        let number = match self.with_room[class.0 as usize] {
            0 => self.open(class, pages)?,
            number => number,
        };
        let first = first_page(number);
        let start = pages.address(first);
        let slab = pages.slab(first);
        slab.used += 1;
        let is_full = slab.used == class.blocks();
        let block = if slab.free == 0 {
            let place = slab.fresh as usize * GRAIN;
            slab.fresh += (class.size() / GRAIN) as u16;
            start.wrapping_add(place)
        } else {
            let block = start.wrapping_add((slab.free as usize - 1) * GRAIN);
            // SAFETY: a free block of this slab, in which `give_back` has left the place of the next.
            slab.free = unsafe { block.cast::<u16>().read() };
            block
        };
        if is_full {
            self.remove(number, class, pages);
        }
        Some(block)
    }

    /// # Safety
    /// The block must be one of this size, and nobody may use it any more.
    pub(super) unsafe fn give_back(&mut self, block: *mut u8, class: Class, pages: &mut Pages) {
        let first = pages.holding(block) / SLAB_PAGES * SLAB_PAGES;
        let place = (block.addr() - pages.address(first).addr()) / GRAIN;
        let slab = pages.slab(first);
        // SAFETY: the block is free, and large enough.
        unsafe { block.cast::<u16>().write(slab.free) };
        slab.free = place as u16 + 1;
        let was_full = slab.used == class.blocks();
        slab.used -= 1;
        let is_empty = slab.used == 0;
        let number = first / SLAB_PAGES + 1;
        if was_full {
            self.insert(number, class, pages);
        }
        // One stays: what was given back is often wanted again.
        if is_empty && self.has_other(number, class, pages) {
            self.remove(number, class, pages);
            pages.give_back(first, SLAB_PAGES);
        }
    }

    /// A new slab.
    fn open(&mut self, class: Class, pages: &mut Pages) -> Option<u32> {
        let first = pages.take(SLAB_PAGES, SLAB_PAGES)?.first;
        let slab = pages.slab(first);
        (slab.free, slab.fresh, slab.used) = (0, 0, 0);
        let number = first / SLAB_PAGES + 1;
        self.insert(number, class, pages);
        Some(number)
    }

    fn insert(&mut self, number: u32, class: Class, pages: &mut Pages) {
        let head = &mut self.with_room[class.0 as usize];
        let slab = pages.slab(first_page(number));
        (slab.previous, slab.next) = (0, *head);
        if *head != 0 {
            pages.slab(first_page(*head)).previous = number;
        }
        *head = number;
    }

    fn remove(&mut self, number: u32, class: Class, pages: &mut Pages) {
        let slab = pages.slab(first_page(number));
        let (previous, next) = (slab.previous, slab.next);
        match previous {
            0 => self.with_room[class.0 as usize] = next,
            previous => pages.slab(first_page(previous)).next = next,
        }
        if next != 0 {
            pages.slab(first_page(next)).previous = previous;
        }
    }

    /// Is there another one with room?
    fn has_other(&self, number: u32, class: Class, pages: &mut Pages) -> bool {
        self.with_room[class.0 as usize] != number || pages.slab(first_page(number)).next != 0
    }
}

const fn first_page(number: u32) -> u32 {
    (number - 1) * SLAB_PAGES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_holds_what_it_is_for_and_wastes_little() {
        for size in 1..=BLOCK_MAX {
            for align in [1, 8, 16, 32, 64, 256] {
                let layout = Layout::from_size_align(size, align).unwrap();
                let Some(class) = Class::of(layout) else {
                    assert!(size > BLOCK_MAX / 2 && align > GRAIN);
                    continue;
                };
                assert!(class.size() >= size && class.size().is_multiple_of(GRAIN.max(align)));
                let waste = class.size() - size;
                let waste_max = match size {
                    ..HALVED_FROM => GRAIN.max(size),
                    _ => size / 2,
                };
                assert!(align > GRAIN || waste <= waste_max, "{size}");
            }
        }
        let larger = Layout::from_size_align(BLOCK_MAX + 1, 1).unwrap();
        assert_eq!(Class::of(larger), None);
    }
}
