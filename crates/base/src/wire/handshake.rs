//! The request of `legato run` to `legato-uffd`, and the answer, over a seqpacket socket: to call UFFDIO_API on the
//! userfaultfd that comes with the request. One request for each process.

/// Begins both; goes up with every change. The helper may be older than who asks.
const VERSION: u32 = u32::from_le_bytes(*b"LGu1");
/// Bytes of a request.
pub const REQUEST_SIZE: usize = 12;
/// Bytes of an answer.
pub const ANSWER_SIZE: usize = 8;

/// A request for these features.
pub fn request(features: u64) -> [u8; REQUEST_SIZE] {
    let mut bytes = [0; REQUEST_SIZE];
    bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
    bytes[4..].copy_from_slice(&features.to_le_bytes());
    bytes
}

/// The features that are asked for. None if this is no request of this version.
pub fn parse_request(bytes: &[u8]) -> Option<u64> {
    let rest = bytes.strip_prefix(&VERSION.to_le_bytes())?;
    Some(u64::from_le_bytes(rest.try_into().ok()?))
}

/// An answer: 0, or an errno.
pub fn answer(errno: u32) -> [u8; ANSWER_SIZE] {
    let mut bytes = [0; ANSWER_SIZE];
    bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
    bytes[4..].copy_from_slice(&errno.to_le_bytes());
    bytes
}

/// The errno that was answered, or 0. None if this is no answer of this version.
pub fn parse_answer(bytes: &[u8]) -> Option<u32> {
    let rest = bytes.strip_prefix(&VERSION.to_le_bytes())?;
    Some(u32::from_le_bytes(rest.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_understood_and_nothing_else_is() {
        assert_eq!(parse_request(&request(1 << 40)), Some(1 << 40));
        assert_eq!(parse_answer(&answer(1)), Some(1));
        assert_eq!(parse_request(&answer(1)), None);
        assert_eq!(parse_answer(&request(1)), None);
        let mut other = request(7);
        other[3] += 1;
        assert_eq!(parse_request(&other), None);
        assert_eq!(parse_request(&request(7)[..11]), None);
    }
}
