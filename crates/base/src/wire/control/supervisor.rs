//! What the supervisor says.

use super::{CONTROL_VERSION, ControlError, check};
use crate::secret::{RUN_ID_LENGTH, RunId, RunKey, SECRET_LENGTH, wipe};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Memory nodes that one agent can use.
pub const NODES_MAX: usize = 16;
/// Bytes of one address, zero-padded.
pub const ADDRESS_SIZE: usize = 128;
const MAGIC_WELCOME: u32 = u32::from_le_bytes(*b"LGwe");
const MAGIC_ORDER: u32 = u32::from_le_bytes(*b"LGor");
const ORDER_SHARE: u32 = 1;
const ORDER_HAND: u32 = 2;
const ORDER_REPLACED: u32 = 3;
const ORDER_DISMISSED: u32 = 4;
const ORDER_IDLE_POLL: u32 = 5;
const ORDER_DEVICE: u32 = 6;
const ORDER_HANDSHAKE: u32 = 7;

/// A message from the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorMessage {
    /// The answer to `Hello`, and nothing else is.
    Welcome(Welcome),
    /// So much local memory may be used from now on.
    Share { bytes: u64 },
    /// A hand in the child `pid` (as the child itself sees it) has connected; its connection is
    /// attached.
    Hand { pid: u32, address: u64 },
    /// The program has another agent by now, so that it most likely runs another image: look.
    Replaced,
    /// The answer to `Failed`: may the program run without an agent?
    Dismissed { runs: bool },
    /// A request for CPU latency (PM QoS) is attached, for the agent to make as long as it pays.
    IdlePoll,
    /// The answer to `NeedsDevice`: it is attached, or the supervisor cannot open it either.
    Device,
    /// The answer to `Handshake`: what UFFDIO_API has returned, 0 or an errno.
    Handshake { errno: u32 },
}

/// Some of the memory nodes of a run: a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeSet(u16);

const _: () = assert!(NODES_MAX <= u16::BITS as usize);

impl NodeSet {
    /// By its place among the nodes.
    pub const fn contains(self, node: usize) -> bool {
        node < NODES_MAX && self.0 & (1 << node) != 0
    }
}

impl FromIterator<usize> for NodeSet {
    /// # Panics
    /// If a node is none of [`NODES_MAX`].
    fn from_iter<I: IntoIterator<Item = usize>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self(0), |Self(bits), node| {
            assert!(node < NODES_MAX, "more nodes than an agent can use");
            Self(bits | 1 << node)
        })
    }
}

/// What the supervisor grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Local memory of all processes of the run together, in bytes: no share is ever more.
    pub cache_bytes: u64,
    /// The share to begin with.
    pub share_bytes: u64,
    /// Drawn at random, so that two agents never share a client id.
    pub client: u64,
    /// Where the memory nodes listen.
    pub nodes: Vec<String>,
    /// Those that others have lost: an agent tries them, and does not wait for them.
    pub lost: NodeSet,
    /// What the agent proves itself with to them, if they ask for that.
    pub key: Option<RunKey>,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawWelcome {
    magic: U32,
    version: U32,
    cache_bytes: U64,
    share_bytes: U64,
    client: U64,
    node_count: U32,
    /// 1 if there is a key, else 0, and what follows is zero.
    keyed: u8,
    reserved: u8,
    lost: U16,
    run: [u8; RUN_ID_LENGTH],
    key: [u8; SECRET_LENGTH],
    nodes: [[u8; ADDRESS_SIZE]; NODES_MAX],
}

/// Bytes of the supervisor's answer, its longest message.
pub const WELCOME_SIZE: usize = size_of::<RawWelcome>();

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawOrder {
    magic: U32,
    version: U32,
    kind: U32,
    pid: U32,
    value: U64,
    reserved: U64,
}

/// Bytes of the supervisor's other messages.
pub const ORDER_SIZE: usize = size_of::<RawOrder>();
const _: () = assert!(ORDER_SIZE == 32);

impl SupervisorMessage {
    /// # Panics
    /// If there are more than [`NODES_MAX`] nodes or an address exceeds [`ADDRESS_SIZE`]: the
    /// command line has checked both.
    pub fn to_bytes(&self) -> Vec<u8> {
        match *self {
            Self::Welcome(ref welcome) => welcome.to_bytes(),
            Self::Share { bytes } => order(ORDER_SHARE, 0, bytes),
            Self::Hand { pid, address } => order(ORDER_HAND, pid, address),
            Self::Replaced => order(ORDER_REPLACED, 0, 0),
            Self::Dismissed { runs } => order(ORDER_DISMISSED, 0, u64::from(runs)),
            Self::IdlePoll => order(ORDER_IDLE_POLL, 0, 0),
            Self::Device => order(ORDER_DEVICE, 0, 0),
            Self::Handshake { errno } => order(ORDER_HANDSHAKE, 0, errno.into()),
        }
    }

    /// # Errors
    /// When the bytes are no message of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, ControlError> {
        if bytes.len() == WELCOME_SIZE {
            return Welcome::parse(bytes).map(Self::Welcome);
        }
        let raw = RawOrder::read_from_bytes(bytes).map_err(|_| ControlError::Malformed)?;
        check(raw.magic.get(), MAGIC_ORDER, raw.version.get())?;
        let (pid, value) = (raw.pid.get(), raw.value.get());
        match (raw.kind.get(), raw.reserved.get()) {
            (ORDER_SHARE, 0) if pid == 0 => Ok(Self::Share { bytes: value }),
            (ORDER_HAND, 0) => Ok(Self::Hand {
                pid,
                address: value,
            }),
            (ORDER_REPLACED, 0) if (pid, value) == (0, 0) => Ok(Self::Replaced),
            (ORDER_IDLE_POLL, 0) if (pid, value) == (0, 0) => Ok(Self::IdlePoll),
            (ORDER_DEVICE, 0) if (pid, value) == (0, 0) => Ok(Self::Device),
            (ORDER_HANDSHAKE, 0) if pid == 0 => {
                let errno = u32::try_from(value).map_err(|_| ControlError::Malformed)?;
                Ok(Self::Handshake { errno })
            }
            (ORDER_DISMISSED, 0) if pid == 0 && value <= 1 => {
                Ok(Self::Dismissed { runs: value == 1 })
            }
            _ => Err(ControlError::Malformed),
        }
    }
}

impl Welcome {
    fn to_bytes(&self) -> Vec<u8> {
        assert!(
            self.nodes.len() <= NODES_MAX,
            "more nodes than an agent can use"
        );
        let mut raw = RawWelcome {
            magic: MAGIC_WELCOME.into(),
            version: CONTROL_VERSION.into(),
            cache_bytes: self.cache_bytes.into(),
            share_bytes: self.share_bytes.into(),
            client: self.client.into(),
            node_count: (self.nodes.len() as u32).into(),
            keyed: 0,
            reserved: 0,
            lost: self.lost.0.into(),
            run: [0; RUN_ID_LENGTH],
            key: [0; SECRET_LENGTH],
            nodes: [[0; ADDRESS_SIZE]; NODES_MAX],
        };
        for (place, node) in raw.nodes.iter_mut().zip(&self.nodes) {
            place[..node.len()].copy_from_slice(node.as_bytes());
        }
        if let Some(key) = &self.key {
            raw.keyed = 1;
            raw.run = key.id().0;
            raw.key = *key.bytes();
        }
        let bytes = raw.as_bytes().to_vec();
        wipe(&mut raw.key);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Self, ControlError> {
        let raw = RawWelcome::read_from_bytes(bytes);
        let mut raw = raw.map_err(|_| ControlError::Malformed)?;
        check(raw.magic.get(), MAGIC_WELCOME, raw.version.get())?;
        let used = raw
            .nodes
            .get(..raw.node_count.get() as usize)
            .ok_or(ControlError::Malformed)?;
        let nodes = used
            .iter()
            .map(|address| parse_padded(address))
            .collect::<Result<_, _>>()?;
        let key = match (raw.keyed, raw.reserved) {
            (0, 0) if raw.run == [0; _] && raw.key == [0; _] => None,
            (1, 0) => Some(RunKey::new(RunId(raw.run), raw.key)),
            _ => return Err(ControlError::Malformed),
        };
        wipe(&mut raw.key);
        Ok(Self {
            key,
            cache_bytes: raw.cache_bytes.get(),
            share_bytes: raw.share_bytes.get(),
            client: raw.client.get(),
            nodes,
            lost: NodeSet(raw.lost.get()),
        })
    }
}

fn order(kind: u32, pid: u32, value: u64) -> Vec<u8> {
    let raw = RawOrder {
        magic: MAGIC_ORDER.into(),
        version: CONTROL_VERSION.into(),
        kind: kind.into(),
        pid: pid.into(),
        value: value.into(),
        reserved: 0.into(),
    };
    raw.as_bytes().to_vec()
}

fn parse_padded(bytes: &[u8]) -> Result<String, ControlError> {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    let text = core::str::from_utf8(&bytes[..end]).map_err(|_| ControlError::Malformed)?;
    Ok(text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn messages_survive_a_round_trip() {
        let welcome = Welcome {
            cache_bytes: 1 << 30,
            share_bytes: 1 << 20,
            client: 9,
            nodes: vec!["shm:@a".into()],
            lost: [0, 15].into_iter().collect(),
            key: None,
        };
        let keyed = Welcome {
            key: Some(RunKey::new(RunId([3; 6]), [7; 32])),
            ..welcome.clone()
        };
        let messages = [
            SupervisorMessage::Welcome(welcome),
            SupervisorMessage::Welcome(keyed),
            SupervisorMessage::Share { bytes: u64::MAX },
            SupervisorMessage::Hand {
                pid: 17,
                address: 0x7fff_0000_1000,
            },
            SupervisorMessage::Replaced,
            SupervisorMessage::IdlePoll,
            SupervisorMessage::Device,
            SupervisorMessage::Handshake { errno: 1 },
            SupervisorMessage::Dismissed { runs: false },
            SupervisorMessage::Dismissed { runs: true },
        ];
        for message in messages {
            let bytes = message.to_bytes();
            assert!(matches!(bytes.len(), WELCOME_SIZE | ORDER_SIZE));
            assert_eq!(SupervisorMessage::parse(&bytes), Ok(message));
        }
    }

    // P-28
    #[test]
    fn foreign_bytes_are_refused() {
        let malformed = Err(ControlError::Malformed);
        let good = SupervisorMessage::Share { bytes: 7 }.to_bytes();
        assert_eq!(SupervisorMessage::parse(&good[..31]), malformed);
        assert_eq!(SupervisorMessage::parse(&[0; WELCOME_SIZE]), malformed);
        // Magic, kind, a pid where none belongs, and what is reserved.
        for place in [0, 8, 12, 31] {
            let mut bytes = good.clone();
            bytes[place] = 99;
            assert_eq!(SupervisorMessage::parse(&bytes), malformed, "byte {place}");
        }
        // Neither may it run nor not.
        let mut bytes = SupervisorMessage::Dismissed { runs: true }.to_bytes();
        bytes[16] = 2;
        assert_eq!(SupervisorMessage::parse(&bytes), malformed);
        let mut bytes = good;
        bytes[4] = 1;
        let version = Err(ControlError::Version(1));
        assert_eq!(SupervisorMessage::parse(&bytes), version);
    }
}
