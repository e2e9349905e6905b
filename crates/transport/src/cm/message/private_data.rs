//! Bytes of the consumers, whose length no message says.

use core::fmt;

/// The private data of a message: always all of it, with zeros behind what was put in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const LENGTH: usize>([u8; LENGTH]);

/// Private data has more bytes than the message has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} bytes of private data, and the message has room for {room}")]
pub struct PrivateDataTooLong {
    pub given: usize,
    pub room: usize,
}

impl<const LENGTH: usize> PrivateData<LENGTH> {
    /// Nothing but zeros.
    pub const EMPTY: Self = Self([0; LENGTH]);

    pub const fn new(bytes: [u8; LENGTH]) -> Self {
        Self(bytes)
    }

    /// The bytes, and zeros behind them.
    ///
    /// # Errors
    /// If there are more than the message has room for.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, PrivateDataTooLong> {
        let mut padded = [0; LENGTH];
        padded
            .get_mut(..bytes.len())
            .ok_or(PrivateDataTooLong {
                given: bytes.len(),
                room: LENGTH,
            })?
            .copy_from_slice(bytes);
        Ok(Self(padded))
    }

    pub const fn as_bytes(&self) -> &[u8; LENGTH] {
        &self.0
    }
}

impl<const LENGTH: usize> Default for PrivateData<LENGTH> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<const LENGTH: usize> fmt::Debug for PrivateData<LENGTH> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|&byte| byte != 0);
        f.write_str("0x")?;
        self.0
            .iter()
            .take(used.map_or(0, |last| last + 1))
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn what_is_not_given_is_zero() {
        let data = PrivateData::<4>::from_slice(&[1, 2]).unwrap();
        assert_eq!(data.as_bytes(), &[1, 2, 0, 0]);
        assert_eq!(format!("{data:?}"), "0x0102");
        assert_eq!(
            PrivateData::<4>::from_slice(&[0; 5]),
            Err(PrivateDataTooLong { given: 5, room: 4 })
        );
    }
}
