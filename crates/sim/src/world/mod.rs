//! The deterministic world: a simulated program whose memory is served by the real pager policy,
//! fabric and memory nodes, in virtual time, with every page checked against a model.
//!
//! What is modelled of Linux: missing-page faults, MOVE and its refusals while an event of the
//! address space is unread, content that `madvise` drops a moment after its event was read or
//! (MADV_FREE) may drop at any time, zero fill of what the pager is not in charge of, memory that is
//! registered a while before the pager hears which of its pages are there, changes that threads announce
//! when they get to it and in any order (but those that have gathered are read first), fork with
//! pages that are shared until one writes, children that pages can leave only from some moment on
//! or never, mremap, pinned, locked and poisoned pages, processes that are killed at any time. What
//! is not: read-only mappings, and time that locks cost. [`Machine`] is the model by itself, for
//! the test that compares it with Linux.

mod advance;
mod agent;
mod announcements;
mod calls;
mod care;
mod config;
mod content;
mod copies;
mod defect;
mod failure;
mod frames;
mod kernel;
mod machine;
mod node;
mod physical;
mod processor;
mod program;
mod reading;
mod register;
mod report;
mod script;
mod space;
mod state;
mod transfer;
mod trouble;
mod workload;

pub use config::{Attaching, Registering, WorldConfig};
pub use defect::Defect;
pub use failure::{Failure, FailureKind};
pub use frames::SimFrames;
pub use kernel::SimKernel;
pub use machine::{Machine, PageState, Progress};
pub use program::{Operation, Outcome};
pub use report::Report;
pub use state::World;
pub use trouble::Trouble;

use legato_base::{Duration, Random};
use legato_pager::SpaceId;
use program::State;
use trouble::Troubles;
use workload::Workload;

/// Points in time from one standstill to the next, on average.
const STANDSTILLS_APART: u64 = 4096;

/// Runs the world of a seed: a random program, then an orderly end in which everything must
/// finish and nothing may be left over.
///
/// # Errors
/// The first check that fails.
pub fn run(config: WorldConfig) -> Result<Report, Failure> {
    let config = config.drawn();
    let mut world = World::new(config)?;
    // A stream of its own: what the program does then does not depend on how it was served.
    let mut workload = Workload::new(Random::from_seed(!config.seed), &config);
    let mut random = Random::from_seed(config.seed.rotate_left(32));
    let mut troubles = Troubles::new(
        Random::from_seed(!config.seed.rotate_left(32)),
        config.nodes,
    );
    let mut left = config.steps;
    while left > 0 && !world.has_ended() {
        left -= give_work(&mut world, &mut workload, left);
        if left < config.steps / 2
            && let Some(node) = config.kill_node
            && world.nodes[node].alive
        {
            world.kill_node(node);
        }
        if let Some(time) = config.standstill
            && random.below(STANDSTILLS_APART) == 0
            && !troubles.are_under_way()
        {
            world.stand_still(time);
        }
        if config.troubled {
            let turned = troubles.turn(&mut world);
            turned.map_err(|kind| world.failure(kind))?;
        }
        world.advance()?;
    }
    while troubles.are_under_way() {
        world.advance()?;
        let ended = troubles.end_due(&mut world);
        ended.map_err(|kind| world.failure(kind))?;
    }
    world.troubles = troubles.counts;
    end_threads(&mut world)?;
    (0..config.threads).for_each(|thread| workload.ended(thread));
    while let Some(range) = workload.take_mapping() {
        world.perform(0, Operation::Unmap(range))?;
    }
    // The fabric tries again once a second to destroy what the NIC did not let go.
    if world.troubles.contains_key(&Trouble::Clinging) {
        world.pass(Duration::from_secs(2))?;
    }
    world.finish()
}

/// Gives every idle thread its next operation. Returns how many that were.
fn give_work(world: &mut World, workload: &mut Workload, left: u64) -> u64 {
    let mut given = 0;
    let mut first = 0;
    while let Some(thread) = world.idle_thread(first).filter(|_| given < left) {
        first = thread + 1;
        if let Some(Outcome::Child(child)) = world.take_outcome(thread) {
            workload.forked(child, world.pager().kernel().mappings(child));
        }
        workload.ended(thread);
        let states = world.thread_states();
        let operation = workload.next(thread, states[thread].0, &states);
        world.begin(thread, operation);
        given += 1;
        if let Some(space) = workload.any_victim(&world.thread_states()) {
            world.kill_process(space);
            workload.killed(space);
        }
    }
    given
}

/// Lets every thread finish what it does, and every forked child end.
fn end_threads(world: &mut World) -> Result<(), Failure> {
    let settled = |&(_, state): &(SpaceId, State)| matches!(state, State::Idle | State::Ended);
    loop {
        world.run_until(|world| world.thread_states().iter().all(settled))?;
        let states = world.thread_states();
        let child = states
            .iter()
            .position(|&(space, state)| space != SpaceId::OWN && state == State::Idle);
        let Some(child) = child else { return Ok(()) };
        world.begin(child, Operation::Exit);
    }
}
