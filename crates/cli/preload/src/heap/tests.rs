//! Heaps in memory of their own.

extern crate std;

use super::AgentHeap;
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc as _, Layout};
use legato_base::{PAGE_SIZE, Random};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::unix::fs::FileExt as _;

const SIZE: usize = 1 << 30;
/// At most this of what was used is not given back, however much it was.
const LEFT: usize = 1 << 20;

struct Scene {
    heap: AgentHeap,
    start: *mut core::ffi::c_void,
}

/// A block that is full of one byte.
struct Block {
    start: *mut u8,
    layout: Layout,
    byte: u8,
}

impl Scene {
    fn new() -> Self {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let nowhere = core::ptr::null_mut();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { rustix::mm::mmap_anonymous(nowhere, SIZE, ProtFlags::empty(), flags) };
        let (heap, start) = (AgentHeap::new(), start.unwrap());
        // SAFETY: nobody else has it, and it is unmapped after the last use of the heap.
        unsafe { heap.open(start as u64, SIZE as u64) }.unwrap();
        Self { heap, start }
    }

    fn take(&self, size: usize, byte: u8) -> Block {
        let layout = Layout::from_size_align(size, 1 << (byte % 8)).unwrap();
        // SAFETY: the layout has a size; the block has as many bytes.
        unsafe {
            let start = match byte % 2 {
                0 => self.heap.alloc(layout),
                _ => self.heap.alloc_zeroed(layout),
            };
            assert!(!start.is_null() && start.addr() % layout.align() == 0);
            let bytes = core::slice::from_raw_parts(start, size);
            assert!(byte.is_multiple_of(2) || bytes.iter().all(|&byte| byte == 0));
            start.write_bytes(byte, size);
            Block {
                start,
                layout,
                byte,
            }
        }
    }

    fn resize(&self, block: &mut Block, size: usize) {
        block.check();
        let old = block.layout.size();
        // SAFETY: the block came from this heap with this layout; what is new is not read.
        unsafe {
            block.start = self.heap.realloc(block.start, block.layout, size);
            assert!(!block.start.is_null());
            block.layout = Layout::from_size_align(size, block.layout.align()).unwrap();
            if size > old {
                block.start.add(old).write_bytes(block.byte, size - old);
            }
        }
        block.check();
    }

    fn give_back(&self, block: Block) {
        block.check();
        // SAFETY: it came from this heap with this layout.
        unsafe { self.heap.dealloc(block.start, block.layout) };
    }

    /// Bytes of memory that it has (proc_pid_pagemap(5)).
    fn resident(&self) -> usize {
        let mut pages = alloc::vec![0_u8; SIZE / PAGE_SIZE * 8];
        let place = self.start.addr() / PAGE_SIZE * 8;
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut pages, place as u64).unwrap();
        let present = |page: &&[u8]| page[7] & 1 << 7 != 0;
        pages.chunks(8).filter(present).count() * PAGE_SIZE
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // SAFETY: nothing of it is used any more.
        unsafe { rustix::mm::munmap(self.start, SIZE) }.unwrap();
    }
}

impl Block {
    fn check(&self) {
        // SAFETY: the block has as many bytes, all of which have been written.
        let bytes = unsafe { core::slice::from_raw_parts(self.start, self.layout.size()) };
        assert!(bytes.iter().all(|&byte| byte == self.byte));
    }
}

#[test]
fn blocks_are_apart_and_keep_what_is_in_them() {
    let scene = Scene::new();
    let mut random = Random::from_seed(1);
    let mut blocks = Vec::new();
    for step in 0..40_000_u32 {
        // Up and down, so that segments come and go.
        let grows = random.below(8) < if step / 4000 % 2 == 0 { 5 } else { 3 };
        let least = 1 << random.below(if step % 500 == 0 { 20 } else { 11 });
        let size = (least + random.below(least)) as usize;
        if grows || blocks.is_empty() {
            blocks.push(scene.take(size, step as u8));
        } else {
            let index = random.below(blocks.len() as u64) as usize;
            match step % 3 {
                0 => scene.resize(&mut blocks[index], size),
                _ => scene.give_back(blocks.swap_remove(index)),
            }
        }
    }
    blocks.into_iter().for_each(|block| scene.give_back(block));
    assert!(scene.resident() < LEFT, "{}", scene.resident());
}

/// As a page table and extents grow and go: whatever little is left among it.
#[test]
fn what_is_not_in_use_goes_back_to_the_system() {
    let scene = Scene::new();
    let mut kept = Vec::new();
    for round in 0..4 {
        let mut large = Vec::new();
        for number in 0..16_384 {
            large.push(scene.take(768, 1));
            if number % 16 == 0 {
                large.push(scene.take(24 << 10, 2));
            }
            if number % 1024 == 0 {
                kept.push(scene.take(40, 3));
            }
        }
        let used: usize = large.iter().map(|block| block.layout.size()).sum();
        assert!(scene.resident() < used + used / 32 + LEFT, "round {round}");
        large.into_iter().for_each(|block| scene.give_back(block));
        let left = kept.len() * (128 << 10) + (1 << 20);
        assert!(
            scene.resident() < left,
            "round {round}: {}",
            scene.resident()
        );
    }
    kept.into_iter().for_each(|block| scene.give_back(block));
}
