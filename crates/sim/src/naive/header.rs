//! What is in front of a message.

use legato_verbs::{RemoteAddress, RemoteKey};

/// Bytes of a message, header included, and of each buffer for one.
pub(super) const MESSAGE: u32 = 256;
pub(super) const HEADER: usize = 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Reply,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// Of the body.
    pub(super) length: u32,
    /// Where the caller wants its reply, if it wants it written.
    pub(super) into: Option<RemoteAddress>,
}

impl Header {
    pub(super) fn with_body(&self, body: &[u8]) -> Vec<u8> {
        let kind: u32 = match self.kind {
            Kind::Request => 1,
            Kind::Reply => 2,
        };
        let (key, address) = self.into.map_or((0, 0), |into| (into.key.0, into.address));
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        for field in [kind, self.slot, self.generation, self.length, key] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(address.to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// None for what is no message, such as a buffer that none was ever in.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, body) = bytes.split_at_checked(HEADER)?;
        let (words, address) = header.split_at(20);
        let mut fields = words.chunks_exact(4).map(|word| {
            word.iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u32::from(byte))
        });
        let kind = match fields.next()? {
            1 => Kind::Request,
            2 => Kind::Reply,
            _ => return None,
        };
        let (slot, generation, length) = (fields.next()?, fields.next()?, fields.next()?);
        let key = RemoteKey(fields.next()?);
        let address = address
            .iter()
            .rev()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let header = Self {
            kind,
            slot,
            generation,
            length,
            into: (address != 0).then_some(RemoteAddress { key, address }),
        };
        Some((header, body.get(..length as usize)?))
    }
}
