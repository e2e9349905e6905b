//! What the entry into the object is told: one structure, in the process's memory, without a
//! pointer in it.

use super::InjectionError;
use zerocopy::{Immutable, IntoBytes};

/// The system call that no kernel has, by which the entry says that it is done. Its first argument
/// is the result. The tracer sees it before the kernel does.
pub const END_OF_ENTRY: u32 = 0x0C45_4741;

/// Bytes of a socket's path (`sun_path` of unix(7) has 108, one is the zero at its end).
const CONTROL_MAX: usize = 107;
const MASKED_MAX: usize = 64;

/// Which function of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Entry {
    /// A whole agent, as the object's initialiser starts it.
    Agent = 0,
    /// A hand of the agent of another process.
    Hand = 1,
}

impl Entry {
    const ALL: [Self; 2] = [Self::Agent, Self::Hand];
}

/// What an entry returns: 0 if it did what it was called for, or a negative errno, or one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum EntryRefusal {
    /// The supervisor has been told why.
    Agent = 1,
    UnknownEntry = 2,
}

/// The parameters of an entry.
#[derive(Clone, Copy, Debug, Immutable, IntoBytes)]
#[repr(C)]
pub struct Parameters {
    /// Of this structure: another version of it would have another.
    size: u32,
    entry: u32,
    control_length: u32,
    masked_length: u32,
    /// For the entry to make sense of.
    argument: u64,
    control: [u8; CONTROL_MAX + 1],
    masked: [u8; MASKED_MAX],
    padding: u32,
}

impl Parameters {
    /// None if a name is too long.
    pub fn new(
        entry: Entry,
        control: &[u8],
        masked_features: &[u8],
        argument: u64,
    ) -> Option<Self> {
        if control.len() > CONTROL_MAX || masked_features.len() > MASKED_MAX {
            return None;
        }
        let mut parameters = Self {
            size: size_of::<Self>() as u32,
            entry: entry as u32,
            control_length: control.len() as u32,
            masked_length: masked_features.len() as u32,
            argument,
            control: [0; CONTROL_MAX + 1],
            masked: [0; MASKED_MAX],
            padding: 0,
        };
        parameters.control[..control.len()].copy_from_slice(control);
        parameters.masked[..masked_features.len()].copy_from_slice(masked_features);
        Some(parameters)
    }

    /// None if it is one that this object does not have.
    pub fn entry(&self) -> Option<Entry> {
        if self.size as usize != size_of::<Self>() {
            return None;
        }
        let mut entries = Entry::ALL.into_iter();
        entries.find(|&entry| entry as u32 == self.entry)
    }

    /// Path of a socket.
    pub fn control(&self) -> &[u8] {
        let length = self.control_length as usize;
        self.control.get(..length).unwrap_or_default()
    }

    /// Names of kernel features to do without.
    pub fn masked_features(&self) -> &[u8] {
        let length = self.masked_length as usize;
        self.masked.get(..length).unwrap_or_default()
    }

    pub const fn argument(&self) -> u64 {
        self.argument
    }
}

/// What the entry's result means.
pub(super) fn outcome(result: i64) -> Result<(), InjectionError> {
    const AGENT: i64 = EntryRefusal::Agent as i64;
    match result {
        0 => Ok(()),
        AGENT => Err(InjectionError::AgentRefused),
        errno if errno < 0 => Err(InjectionError::NotStarted(
            i32::try_from(-errno).unwrap_or(i32::MAX),
        )),
        _ => Err(InjectionError::UnknownEntry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_say_what_they_were_given() {
        let parameters = Parameters::new(Entry::Hand, b"control", b"move", 7).unwrap();
        assert_eq!(parameters.entry(), Some(Entry::Hand));
        assert_eq!(parameters.control(), b"control");
        assert_eq!(parameters.masked_features(), b"move");
        assert_eq!(parameters.argument(), 7);
        assert!(Parameters::new(Entry::Agent, &[b'x'; 108], b"", 0).is_none());
        assert!(Parameters::new(Entry::Agent, b"", &[b'x'; 65], 0).is_none());
    }

    #[test]
    fn parameters_of_another_version_name_no_entry() {
        let good = Parameters::new(Entry::Agent, b"", b"", 0).unwrap();
        assert_eq!(Parameters { size: 8, ..good }.entry(), None);
        assert_eq!(Parameters { entry: 9, ..good }.entry(), None);
    }

    #[test]
    fn results_have_their_meaning() {
        assert_eq!(outcome(0), Ok(()));
        assert_eq!(outcome(-12), Err(InjectionError::NotStarted(12)));
        assert_eq!(outcome(1), Err(InjectionError::AgentRefused));
        assert_eq!(
            outcome(EntryRefusal::UnknownEntry as i64),
            Err(InjectionError::UnknownEntry)
        );
    }
}
