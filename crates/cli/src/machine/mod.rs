//! What the machine has, and what of it this process may have.

mod memory_groups;

pub(crate) use memory_groups::memory_limit;

use crate::failure::Failure;
use legato_base::Bytes;
use rustix::rand::{GetRandomFlags, getrandom};

/// Memory that new work of this process can use: without swapping (`MemAvailable`, proc_meminfo(5)), and
/// within the limits of the control groups above it.
pub(crate) fn memory_available() -> Result<Bytes, Failure> {
    let unknown = |error| Failure::system("cannot find out how much memory there is", error);
    let text = std::fs::read_to_string("/proc/meminfo").map_err(unknown)?;
    let available = parse_available(&text)
        .ok_or_else(|| unknown(std::io::Error::other("/proc/meminfo has no MemAvailable")))?;
    let in_groups = memory_groups::memory_left();
    Ok(in_groups.map_or(available, |left| available.min(left)))
}

/// What memory nodes serve: what is asked for with an option, if it is available, or else half of what is.
pub(crate) fn memory_to_serve(option: &str, asked: Option<Bytes>) -> Result<Bytes, Failure> {
    let available = memory_available()?;
    let memory = asked.unwrap_or(Bytes(available.0 / 2));
    if memory > available {
        return Err(Failure::refused(format_args!(
            "{option} {memory} is more than the {available} that this machine, or the control group we \
             are in, has available; give less"
        )));
    }
    Ok(memory)
}

fn parse_available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::kib(kib))
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// 128 random bits in hexadecimal: the part of a name that no other process guesses.
pub(crate) fn random_name() -> std::io::Result<String> {
    let bytes: [u8; 16] = random_bytes()?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_found() {
        let text = "MemTotal:  100 kB\nMemFree:  7 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(parse_available(text), Some(Bytes::mib(2)));
        assert_eq!(parse_available("MemTotal: 1 kB\n"), None);
        assert!(memory_available().unwrap() > Bytes(0));
    }

    #[test]
    fn random_names_differ() {
        let name = random_name().unwrap();
        assert_eq!(name.len(), 32);
        assert_ne!(name, random_name().unwrap());
    }
}
