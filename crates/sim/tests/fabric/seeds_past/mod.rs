//! Failures that were written down by those who had them, each as a schedule: a stack with the habit
//! that caused it fails in the recorded way, and the fabric on the same schedule does not.
//!
//! The logs are those of LegoOS (April and September 2018), a driver author's plan for the errors
//! of his DMA engine (Lustre, 2008), and a report of queue pairs that IPoIB never released (2008).

mod calls;
mod completions;
mod descriptors;
mod leaks;
mod rails;
mod receives;
mod stack;
mod stage;
mod waiting;
