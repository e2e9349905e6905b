//! Deliberate defects, to see that the checker finds them.

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The pager never hears that a range was emptied or unmapped: it would show old content.
    RemovalsIgnored,
    /// Some pages lose a bit on their way out.
    PagesTorn,
    /// What was announced as dropped counts as dropped at once.
    DroppingForgotten,
    /// What several threads announce counts as done in the order in which it was read.
    ReadAsDone,
}
