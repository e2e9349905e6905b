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
    /// Pages that were lost are zeros.
    LossesForgotten,
    /// The neighbours of a page that was lost are taken for lost too.
    LossesSpread,
    /// A node is given up as soon as it answers late.
    Impatience,
    /// A node has granted the same memory to others, and they use it.
    GrantedTwice,
    /// When something has gone wrong a node has the memory of before.
    OldSlots,
    /// A NIC that does not let go writes into frames that serve others.
    LateWrites,
    /// What several threads announce counts as done in the order in which it was read.
    ReadAsDone,
}
