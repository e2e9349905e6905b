//! What rules compare and refuse, and the requests that they post.

use super::Violation;
use super::session::Checked;
use crate::{ScatterGatherEntry, SendFlags, SendOperation, SendRequest, VerbsError, WorkRequestId};
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt::Debug;
use legato_base::Random;

/// A signaled SEND.
pub(super) const fn send(wr_id: u64, entries: Vec<ScatterGatherEntry>) -> SendRequest {
    signaled(wr_id, SendOperation::Send, entries)
}

pub(super) const fn signaled(
    wr_id: u64,
    operation: SendOperation,
    entries: Vec<ScatterGatherEntry>,
) -> SendRequest {
    SendRequest {
        wr_id: WorkRequestId(wr_id),
        operation,
        entries,
        flags: SendFlags::SIGNALED,
    }
}

/// Bytes that differ for each seed and place.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::from_seed(seed);
    (0..length)
        .map(|_| (random.next_u64() >> 56) as u8)
        .collect()
}

pub(super) fn violation(what: &str, expected: &str, got: &str) -> Violation {
    Violation {
        what: what.to_string(),
        expected: expected.to_string(),
        got: got.to_string(),
    }
}

/// A call that the model allows must not be refused.
pub(super) fn must<T>(what: &str, result: Result<T, VerbsError>) -> Checked<T> {
    result.map_err(|error| violation(what, "success", &format!("refused: {error}")))
}

pub(super) fn equal<T: PartialEq + Debug + ?Sized>(what: &str, expected: &T, got: &T) -> Checked {
    if expected == got {
        return Ok(());
    }
    Err(violation(
        what,
        &shortened(&format!("{expected:?}")),
        &shortened(&format!("{got:?}")),
    ))
}

pub(super) fn refused<T: Debug>(
    what: &str,
    result: &Result<T, VerbsError>,
    allowed: impl Fn(&VerbsError) -> bool,
    expected: &str,
) -> Checked {
    match result {
        Err(error) if allowed(error) => Ok(()),
        other => Err(violation(what, expected, &format!("{other:?}"))),
    }
}

/// Long byte vectors say nothing to a reader.
fn shortened(text: &str) -> alloc::string::String {
    if text.len() <= 600 {
        return text.to_string();
    }
    format!("{}...", &text[..600])
}
