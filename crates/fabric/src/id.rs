//! Ids: an index and a generation, in 64 bits, never a pointer.

use core::fmt;

/// What a token names: a work request, but for calls and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Receive = 1,
    RequestSend = 2,
    ReplySend = 3,
    OneSided = 4,
    Call = 5,
    Request = 6,
    Probe = 7,
    Marker = 8,
    /// Of the pool: what follows names no connection.
    SharedReceive = 9,
    Revocation = 10,
}

/// P-6: kind (4 bits), slot of the connection (16), slot within it (16), generation (28).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(u64);

/// Most connections of a fabric, and most slots of one kind in a connection.
pub(crate) const INDEX_MAX: u32 = 1 << 16;
const GENERATION_BITS: u32 = 28;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

impl Token {
    pub(crate) const fn new(kind: Kind, connection: u16, key: Key) -> Self {
        Self(
            (kind as u64) << 60
                | (connection as u64) << 44
                | (key.index as u64) << GENERATION_BITS
                | key.generation as u64,
        )
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn kind(self) -> Option<Kind> {
        match self.0 >> 60 {
            1 => Some(Kind::Receive),
            2 => Some(Kind::RequestSend),
            3 => Some(Kind::ReplySend),
            4 => Some(Kind::OneSided),
            5 => Some(Kind::Call),
            6 => Some(Kind::Request),
            7 => Some(Kind::Probe),
            8 => Some(Kind::Marker),
            9 => Some(Kind::SharedReceive),
            10 => Some(Kind::Revocation),
            _ => None,
        }
    }

    pub(crate) const fn connection(self) -> usize {
        (self.0 >> 44 & 0xFFFF) as usize
    }

    pub(crate) const fn key(self) -> Key {
        Key {
            index: (self.0 >> GENERATION_BITS & 0xFFFF) as u16,
            generation: self.0 as u32 & GENERATION_MASK,
        }
    }
}

/// A place in a [`crate::table::Table`], and which of its tenants is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

/// Gives out generations, one series for everything in a fabric. It repeats after 2^28, and a
/// place is only given away again after the completion of its last tenant has been seen.
#[derive(Debug)]
pub(crate) struct Generations(u32);

impl Generations {
    pub(crate) const fn starting_at(first: u32) -> Self {
        Self(first & GENERATION_MASK)
    }

    pub(crate) const fn next(&mut self) -> u32 {
        let generation = self.0;
        self.0 = (self.0 + 1) & GENERATION_MASK;
        generation
    }
}

macro_rules! public_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) Token);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Key { index, generation } = self.0.key();
                write!(f, "{}{}.{index}#{generation}", $prefix, self.0.connection())
            }
        }
    };
}

public_id!(
    /// A call that this side made.
    CallId,
    "call-"
);
public_id!(
    /// A one-sided operation of this side.
    OperationId,
    "operation-"
);
public_id!(
    /// A request of a peer that waits for its reply.
    RequestId,
    "request-"
);

/// A connection, from connect or accept until it is reported as failed or disconnected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    pub index: u32,
    /// Differs for each connection that ever had this index.
    pub generation: u32,
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection-{}#{}", self.index, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_every_field_apart() {
        let key = Key {
            index: u16::MAX,
            generation: GENERATION_MASK,
        };
        for kind in [Kind::Receive, Kind::OneSided, Kind::Request] {
            for connection in [0, 1, u16::MAX] {
                let token = Token::from_bits(Token::new(kind, connection, key).bits());
                assert_eq!(token.kind(), Some(kind));
                assert_eq!(token.connection(), usize::from(connection));
                assert_eq!(token.key(), key);
            }
        }
        assert_eq!(Token::from_bits(0).kind(), None);
    }

    #[test]
    fn generations_wrap_inside_their_field() {
        let mut generations = Generations::starting_at(GENERATION_MASK);
        assert_eq!(generations.next(), GENERATION_MASK);
        assert_eq!(generations.next(), 0);
    }
}
