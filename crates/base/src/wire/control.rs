//! What an agent and its supervisor (`legato run`) say to each other over a local seqpacket
//! socket. Both come from one binary; the version is checked all the same, because a program may
//! outlive an upgrade.
//!
//! The agent sends `Hello`; the supervisor answers with a [`Welcome`]; the agent sends `Ready`
//! with two descriptors (the userfaultfd, so that it outlives the agent, and the memfd of its
//! [`super::stats::StatsPage`]) or `Failed`. Afterwards only the agent speaks. Each side takes the
//! end of the connection for the death of the other.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Goes up with every change of a layout in this module.
pub const CONTROL_VERSION: u32 = 1;
/// Memory nodes that one agent can use.
pub const NODES_MAX: usize = 16;
/// Bytes of one address, zero-padded.
pub const ADDRESS_SIZE: usize = 128;
const TEXT_SIZE: usize = 216;
const MAGIC_AGENT: u32 = u32::from_le_bytes(*b"LGag");
const MAGIC_WELCOME: u32 = u32::from_le_bytes(*b"LGwe");

/// A message from an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentMessage {
    /// Of the program, as the program itself sees it.
    pub pid: u32,
    pub body: AgentMessageBody,
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessageBody {
    /// A process wants far memory. `text` is its command name.
    Hello { text: String },
    /// The program may start; descriptors are attached.
    Ready,
    /// The agent could not start, and why.
    Failed { text: String },
    /// A node is gone, and with it the only copy of `pages` pages.
    NodeLost { node: u32, pages: u64, text: String },
    /// No node has room and the program needs more.
    FarMemoryFull { text: String },
    /// The agent cannot go on; it has killed the program.
    Fatal { text: String },
    /// The last message: nothing that the agent serves is left, because the program has ended or
    /// has replaced itself (`execve`). A connection that ends without it means a dead agent.
    Done,
    /// The program forked; the child's userfaultfd is attached, to be held like the program's.
    Forked,
    /// Something that the user should know; the program runs on.
    Notice { text: String },
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAgentMessage {
    magic: U32,
    version: U32,
    kind: U32,
    pid: U32,
    node: U32,
    text_length: U32,
    value: U64,
    reserved: [u8; 8],
    text: [u8; TEXT_SIZE],
}

/// Bytes of an agent's message.
pub const AGENT_MESSAGE_SIZE: usize = size_of::<RawAgentMessage>();
const _: () = assert!(AGENT_MESSAGE_SIZE == 256);

/// What the supervisor grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The limit of the program's local memory, in bytes.
    pub cache_bytes: u64,
    /// Drawn at random, so that two agents never share a client id.
    pub client: u64,
    /// Where the memory nodes listen.
    pub nodes: Vec<String>,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawWelcome {
    magic: U32,
    version: U32,
    cache_bytes: U64,
    client: U64,
    node_count: U32,
    reserved: U32,
    nodes: [[u8; ADDRESS_SIZE]; NODES_MAX],
}

/// Bytes of the supervisor's answer.
pub const WELCOME_SIZE: usize = size_of::<RawWelcome>();

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    #[error("not a control message")]
    Malformed,
    #[error("the other side speaks control version {0}, this one speaks {CONTROL_VERSION}")]
    Version(u32),
}

impl AgentMessage {
    /// Texts longer than the layout allows are cut at a character boundary.
    pub fn to_bytes(&self) -> [u8; AGENT_MESSAGE_SIZE] {
        let (kind, node, value, text) = match &self.body {
            AgentMessageBody::Hello { text } => (1, 0, 0, text.as_str()),
            AgentMessageBody::Ready => (2, 0, 0, ""),
            AgentMessageBody::Failed { text } => (3, 0, 0, text.as_str()),
            AgentMessageBody::NodeLost { node, pages, text } => (4, *node, *pages, text.as_str()),
            AgentMessageBody::FarMemoryFull { text } => (5, 0, 0, text.as_str()),
            AgentMessageBody::Fatal { text } => (6, 0, 0, text.as_str()),
            AgentMessageBody::Done => (7, 0, 0, ""),
            AgentMessageBody::Forked => (8, 0, 0, ""),
            AgentMessageBody::Notice { text } => (9, 0, 0, text.as_str()),
        };
        encode(self.pid, (kind, node, value, text))
    }

    /// A `Fatal` message, made without the heap. The pid is left out: the connection tells it.
    pub fn fatal_bytes(text: &str) -> [u8; AGENT_MESSAGE_SIZE] {
        encode(0, (6, 0, 0, text))
    }

    /// # Errors
    /// When the bytes are no message of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, ControlError> {
        let raw = RawAgentMessage::read_from_bytes(bytes).map_err(|_| ControlError::Malformed)?;
        check(raw.magic.get(), MAGIC_AGENT, raw.version.get())?;
        let text = raw
            .text
            .get(..raw.text_length.get() as usize)
            .ok_or(ControlError::Malformed)?;
        let text = core::str::from_utf8(text)
            .map_err(|_| ControlError::Malformed)?
            .to_string();
        let body = match raw.kind.get() {
            1 => AgentMessageBody::Hello { text },
            2 => AgentMessageBody::Ready,
            3 => AgentMessageBody::Failed { text },
            4 => {
                let (node, pages) = (raw.node.get(), raw.value.get());
                AgentMessageBody::NodeLost { node, pages, text }
            }
            5 => AgentMessageBody::FarMemoryFull { text },
            6 => AgentMessageBody::Fatal { text },
            7 => AgentMessageBody::Done,
            8 => AgentMessageBody::Forked,
            9 => AgentMessageBody::Notice { text },
            _ => return Err(ControlError::Malformed),
        };
        Ok(Self {
            pid: raw.pid.get(),
            body,
        })
    }
}

impl Welcome {
    /// # Panics
    /// If there are more than [`NODES_MAX`] nodes or an address exceeds [`ADDRESS_SIZE`]: the
    /// command line has checked both.
    pub fn to_bytes(&self) -> Vec<u8> {
        assert!(
            self.nodes.len() <= NODES_MAX,
            "more nodes than an agent can use"
        );
        let mut raw = RawWelcome {
            magic: MAGIC_WELCOME.into(),
            version: CONTROL_VERSION.into(),
            cache_bytes: self.cache_bytes.into(),
            client: self.client.into(),
            node_count: (self.nodes.len() as u32).into(),
            reserved: 0.into(),
            nodes: [[0; ADDRESS_SIZE]; NODES_MAX],
        };
        for (place, node) in raw.nodes.iter_mut().zip(&self.nodes) {
            place[..node.len()].copy_from_slice(node.as_bytes());
        }
        raw.as_bytes().to_vec()
    }

    /// # Errors
    /// When the bytes are no answer of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, ControlError> {
        let raw = RawWelcome::read_from_bytes(bytes).map_err(|_| ControlError::Malformed)?;
        check(raw.magic.get(), MAGIC_WELCOME, raw.version.get())?;
        let used = raw
            .nodes
            .get(..raw.node_count.get() as usize)
            .ok_or(ControlError::Malformed)?;
        let nodes = used
            .iter()
            .map(|address| parse_padded(address))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            cache_bytes: raw.cache_bytes.get(),
            client: raw.client.get(),
            nodes,
        })
    }
}

fn encode(pid: u32, (kind, node, value, text): (u32, u32, u64, &str)) -> [u8; AGENT_MESSAGE_SIZE] {
    let text = &text[..text.floor_char_boundary(TEXT_SIZE)];
    let mut raw = RawAgentMessage {
        magic: MAGIC_AGENT.into(),
        version: CONTROL_VERSION.into(),
        kind: kind.into(),
        pid: pid.into(),
        node: node.into(),
        text_length: (text.len() as u32).into(),
        value: value.into(),
        reserved: [0; 8],
        text: [0; TEXT_SIZE],
    };
    raw.text[..text.len()].copy_from_slice(text.as_bytes());
    let mut bytes = [0; AGENT_MESSAGE_SIZE];
    bytes.copy_from_slice(raw.as_bytes());
    bytes
}

fn parse_padded(bytes: &[u8]) -> Result<String, ControlError> {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    let text = core::str::from_utf8(&bytes[..end]).map_err(|_| ControlError::Malformed)?;
    Ok(text.to_string())
}

fn check(magic: u32, expected: u32, version: u32) -> Result<(), ControlError> {
    if magic != expected {
        return Err(ControlError::Malformed);
    }
    if version != CONTROL_VERSION {
        return Err(ControlError::Version(version));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn messages_survive_a_round_trip() {
        let bodies = vec![
            AgentMessageBody::Hello {
                text: "sort".to_string(),
            },
            AgentMessageBody::Ready,
            AgentMessageBody::Done,
            AgentMessageBody::Forked,
            AgentMessageBody::NodeLost {
                node: 2,
                pages: 77,
                text: "gone".to_string(),
            },
        ];
        for body in bodies {
            let message = AgentMessage { pid: 4711, body };
            assert_eq!(AgentMessage::parse(&message.to_bytes()), Ok(message));
        }
        let welcome = Welcome {
            cache_bytes: 1 << 30,
            client: 9,
            nodes: vec!["shm:@a".into()],
        };
        assert_eq!(Welcome::parse(&welcome.to_bytes()), Ok(welcome));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "\u{00e4}".repeat(300);
        let message = AgentMessage {
            pid: 1,
            body: AgentMessageBody::Fatal { text },
        };
        let Ok(AgentMessage {
            body: AgentMessageBody::Fatal { text },
            ..
        }) = AgentMessage::parse(&message.to_bytes())
        else {
            panic!("not understood");
        };
        assert_eq!(text.chars().count(), TEXT_SIZE / 2);
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(AgentMessage::parse(b"short"), Err(ControlError::Malformed));
        let mut bytes = AgentMessage {
            pid: 1,
            body: AgentMessageBody::Ready,
        }
        .to_bytes();
        bytes[4] = 99;
        assert_eq!(AgentMessage::parse(&bytes), Err(ControlError::Version(99)));
        bytes[4] = 1;
        bytes[20..24].fill(0xff);
        assert_eq!(AgentMessage::parse(&bytes), Err(ControlError::Malformed));
    }
}
