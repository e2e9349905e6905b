//! Why a run failed, and how to see it again.

use legato_base::{PageNumber, Time};
use legato_pager::{PagerEvent, SpaceId};
use std::fmt;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailureKind {
    #[error("{page:?} of space {} holds {found:?}, expected one of {allowed:?}", space.0)]
    WrongData {
        space: SpaceId,
        page: PageNumber,
        found: Option<u64>,
        allowed: Vec<u64>,
    },
    #[error("{page:?} gave SIGBUS and was not lost")]
    BusError { page: PageNumber },
    #[error("{page:?} of space {} was lost, and a copy was {place}", space.0)]
    LostWithCopy {
        space: SpaceId,
        page: PageNumber,
        place: &'static str,
    },
    #[error("{count} pages were lost while every node was reachable")]
    LostWithoutReason { count: u64 },
    #[error("node {node} was given up while it was reachable")]
    GivenUp { node: usize },
    #[error(
        "the slot of {page:?} of space {} at node {node} holds {found:?}, expected one of {allowed:?}",
        space.0
    )]
    WrongCopy {
        space: SpaceId,
        page: PageNumber,
        node: usize,
        found: Option<u64>,
        allowed: Vec<u64>,
    },
    #[error("the simulated program touched {page:?}, which it has not mapped")]
    NotMapped { page: PageNumber },
    #[error("{resident} pages are local, {limit} are allowed")]
    OverLimit { resident: u64, limit: u64 },
    #[error("the pager gave up: {0:?}")]
    GaveUp(PagerEvent),
    #[error("{page:?} of space {} is resident, and the pager does not know of it", space.0)]
    OutOfCare { space: SpaceId, page: PageNumber },
    #[error("{page:?} of space {} is not there, and the pager takes it for resident", space.0)]
    NotResident { space: SpaceId, page: PageNumber },
    #[error("the pager counts wrong: {0}")]
    Miscounted(&'static str),
    #[error("nothing happens any more: {0}")]
    Stuck(&'static str),
    #[error("{count} {what} left over at the end")]
    Leak { what: &'static str, count: u64 },
    #[error("the simulated network refused to be set up")]
    Setup,
}

/// A failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub seed: u64,
    pub steps: u64,
    /// In virtual time.
    pub at: Time,
    pub kind: FailureKind,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            steps,
            at,
            kind,
        } = self;
        writeln!(f, "seed {seed}, {at:?}: {kind}")?;
        write!(f, "replay with: legato sim --seed {seed} --steps {steps}")
    }
}

impl std::error::Error for Failure {}
