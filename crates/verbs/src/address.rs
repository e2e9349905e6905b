//! Where a listener is: `shm:NAME` or `sim:NAME`, later one scheme for each provider.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

/// An address that a provider can listen on or connect to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A Unix socket: a path, or after `@` a name in the abstract namespace, which leaves nothing
    /// in any file system.
    Shm(String),
    /// A named port of the simulator.
    Sim(String),
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("'{0}' has no known scheme: write shm:/path/to/socket or shm:@name")]
    UnknownScheme(String),
    #[error("the address has no name after '{0}:'")]
    Empty(&'static str),
    #[error("the name in '{0}' is longer than a Unix socket allows (107 bytes)")]
    TooLong(String),
}

/// Longest name of a Unix socket (`sun_path` less its final zero, unix(7)).
const UNIX_NAME_MAX: usize = 107;

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.split_once(':') {
            Some(("shm", "" | "@")) => Err(AddressError::Empty("shm")),
            Some(("shm", name)) if name.len() > UNIX_NAME_MAX => {
                Err(AddressError::TooLong(text.to_string()))
            }
            Some(("shm", name)) => Ok(Self::Shm(name.to_string())),
            Some(("sim", "")) => Err(AddressError::Empty("sim")),
            Some(("sim", name)) => Ok(Self::Sim(name.to_string())),
            _ => Err(AddressError::UnknownScheme(text.to_string())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(name) => write!(f, "shm:{name}"),
            Self::Sim(name) => write!(f, "sim:{name}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in ["shm:/run/legato/node.sock", "shm:@legato-1", "sim:node-a"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "node", "tcp:host:1", "shm:", "shm:@", "sim:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        let long = alloc::format!("shm:/{}", "x".repeat(200));
        assert!(matches!(
            long.parse::<Address>(),
            Err(AddressError::TooLong(_))
        ));
    }
}
