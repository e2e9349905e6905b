//! Private data on the wire, and how long it is.
//!
//! A message of connection management has a fixed number of bytes for it and says nothing of how many are
//! meant (IB spec 12.6). Two providers of this crate tell each other: a request by the port that it comes
//! from, which nobody answers to, its answer by a mark in front. Another stack, such as `rdma_cm(7)` of
//! Linux, is told what is meant and nothing else; what it says is given on without the zeros behind it.

use crate::PRIVATE_DATA_MAX;
use alloc::vec::Vec;

/// A request with no private data comes from this port, one with n bytes from the n-th after it. Linux
/// gives none of these to programs that do not choose (`net.ipv4.ip_local_port_range`, 32768 to 60999).
const SOURCE_PORT: u16 = 0xFF00;
/// Begins the private data of an answer, before its length.
const MARK: [u8; 3] = *b"LGd";

/// The source port of a request with so many bytes, at most [`PRIVATE_DATA_MAX`].
pub const fn source_port(length: usize) -> u16 {
    SOURCE_PORT + length as u16
}

/// How much private data a request has that came from this port; None if another stack has sent it.
fn length_of(source_port: u16) -> Option<usize> {
    let length = source_port.checked_sub(SOURCE_PORT).map(usize::from);
    length.filter(|&length| length <= PRIVATE_DATA_MAX)
}

/// What a request has said that came from a port.
pub fn asked(bytes: &[u8], source_port: u16) -> Vec<u8> {
    match length_of(source_port) {
        Some(length) => bytes.get(..length).unwrap_or(bytes).to_vec(),
        None => foreign(bytes),
    }
}

/// What goes into the reply or rejection of a request that came from a port: at most
/// [`PRIVATE_DATA_MAX`] bytes, and what says how many.
pub fn answer(data: &[u8], source_port: u16) -> Vec<u8> {
    if length_of(source_port).is_none() {
        return data.to_vec();
    }
    let mut bytes = Vec::with_capacity(MARK.len() + 1 + data.len());
    bytes.extend_from_slice(&MARK);
    bytes.push(data.len() as u8);
    bytes.extend_from_slice(data);
    bytes
}

/// What a reply or rejection has said.
pub fn answered(bytes: &[u8]) -> Vec<u8> {
    let marked = bytes.strip_prefix(&MARK).and_then(<[u8]>::split_first);
    match marked.and_then(|(&length, rest)| rest.get(..usize::from(length))) {
        Some(data) => data.to_vec(),
        None => foreign(bytes),
    }
}

fn foreign(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.iter().rposition(|&byte| byte != 0);
    bytes[..end.map_or(0, |last| last + 1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// As a message has it.
    fn padded<const ROOM: usize>(data: &[u8]) -> [u8; ROOM] {
        let mut bytes = [0; ROOM];
        bytes[..data.len()].copy_from_slice(data);
        bytes
    }

    #[test]
    fn private_data_keeps_its_length() {
        for length in 0..=PRIVATE_DATA_MAX {
            for byte in [0, 7] {
                let data = vec![byte; length];
                let answer = answer(&data, source_port(3));
                assert_eq!(answered(&padded::<148>(&answer)), data);
                assert_eq!(asked(&padded::<56>(&data), source_port(length)), data);
            }
        }
    }

    #[test]
    fn what_is_said_to_and_by_another_stack_is_whole() {
        for data in [
            &b""[..],
            b"\x04text",
            b"no-room-here",
            b"LG",
            b"\0\0x",
            b"LGd\xFFtext",
        ] {
            assert_eq!(answered(&padded::<148>(data)), data);
            for port in [
                0,
                49_152,
                60_999,
                SOURCE_PORT - 1,
                source_port(PRIVATE_DATA_MAX) + 1,
            ] {
                assert_eq!(asked(&padded::<56>(data), port), data);
                assert_eq!(answer(data, port), data);
            }
        }
        // One that is cut off.
        assert_eq!(asked(b"text", source_port(9)), b"text");
    }
}
