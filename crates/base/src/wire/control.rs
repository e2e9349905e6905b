//! What an agent and its supervisor (`legato run`) say to each other over a local seqpacket
//! socket. Both come from one binary; the version is checked all the same, because a program may
//! outlive an upgrade.
//!
//! The agent sends `Hello`; the supervisor answers with a [`Welcome`], with a descriptor where the agent
//! is to reach its nodes through the supervisor: its end of a proxy; the agent sends `Ready`
//! with two descriptors (the userfaultfd, so that it outlives the agent, and the memfd of its
//! [`super::stats::StatsPage`]) or `Failed`, which the supervisor answers with
//! [`SupervisorMessage::Dismissed`]. Whoever cannot even start an agent sends `Failed` at once.
//! Afterwards the agent reports its `Usage`, and the
//! supervisor answers with a [`SupervisorMessage::Share`] when the agent's part of the local memory
//! changes; the agent says with `Holds` that it is down to a smaller one.
//!
//! An agent without the right to what it needs asks the supervisor after `Welcome`: with `NeedsDevice` for
//! /dev/userfaultfd, by which a process makes a userfaultfd for its own memory, and with `Handshake`, to which
//! a fresh one is attached, for UFFDIO_API with features that not everybody may have.
//!
//! A *hand* is a task in a forked child that does for the agent of another process what can only
//! be done from inside. It sends `Hand`, and the supervisor passes its end of that connection on to
//! the agent with [`SupervisorMessage::Hand`].
//!
//! Each side takes the end of the connection for the death of the other.

mod supervisor;

use alloc::string::{String, ToString};
pub use supervisor::{
    ADDRESS_SIZE, NODES_MAX, NodeSet, ORDER_SIZE, SupervisorMessage, WELCOME_SIZE, Welcome,
};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Goes up with every change of a layout in this module.
pub const CONTROL_VERSION: u32 = 8;
/// Enough for a sentence that names a node, whose address may be the path of a socket (108 bytes).
const TEXT_SIZE: usize = 464;
const MAGIC_AGENT: u32 = u32::from_le_bytes(*b"LGag");

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
    /// A node is gone, and with it the only copy of `pages` pages. Why, in words.
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
    /// What the agent and its program use of the local memory.
    Usage(Usage),
    /// Local memory is down to so many bytes and stays there: the share of the last
    /// [`SupervisorMessage::Share`], or a step on the way to it.
    Holds { bytes: u64 },
    /// The first message of a hand: the process whose agent serves the child, and an address in
    /// the child that the agent needs to know.
    Hand { program: u32, address: u64 },
    /// Only before `Ready`, answered with [`SupervisorMessage::Device`].
    NeedsDevice,
    /// Only before `Ready`, answered with [`SupervisorMessage::Handshake`]; a userfaultfd is attached, on which
    /// UFFDIO_API has not been called.
    Handshake { features: u64 },
}

/// What an agent uses, and whether it could use more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Local memory of all address spaces that the agent serves, its own memory included.
    pub resident_bytes: u64,
    /// With less than this the program cannot go on: more cannot leave. 0 if that is not known.
    pub needed_bytes: u64,
    /// Pages leave and come back because the share is used up.
    pub pressed: bool,
    /// Address spaces served: one, and one for each forked child.
    pub spaces: u32,
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
    values: [U64; 3],
    text: [u8; TEXT_SIZE],
}

/// Bytes of an agent's message.
pub const AGENT_MESSAGE_SIZE: usize = size_of::<RawAgentMessage>();
const _: () = assert!(AGENT_MESSAGE_SIZE == 512);

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
        let none = [0; 3];
        let (kind, node, values, text) = match &self.body {
            AgentMessageBody::Hello { text } => (1, 0, none, text.as_str()),
            AgentMessageBody::Ready => (2, 0, none, ""),
            AgentMessageBody::Failed { text } => (3, 0, none, text.as_str()),
            AgentMessageBody::NodeLost { node, pages, text } => {
                (4, *node, [*pages, 0, 0], text.as_str())
            }
            AgentMessageBody::FarMemoryFull { text } => (5, 0, none, text.as_str()),
            AgentMessageBody::Fatal { text } => (6, 0, none, text.as_str()),
            AgentMessageBody::Done => (7, 0, none, ""),
            AgentMessageBody::Forked => (8, 0, none, ""),
            AgentMessageBody::Notice { text } => (9, 0, none, text.as_str()),
            AgentMessageBody::Usage(usage) => {
                let pressed = u64::from(usage.pressed);
                let values = [usage.resident_bytes, usage.needed_bytes, pressed];
                (10, usage.spaces, values, "")
            }
            AgentMessageBody::Holds { bytes } => (11, 0, [*bytes, 0, 0], ""),
            AgentMessageBody::Hand { program, address } => (12, *program, [*address, 0, 0], ""),
            AgentMessageBody::NeedsDevice => (13, 0, none, ""),
            AgentMessageBody::Handshake { features } => (14, 0, [*features, 0, 0], ""),
        };
        encode(self.pid, (kind, node, values, text))
    }

    /// A `Fatal` message, made without the heap. The pid is left out: the connection tells it.
    pub fn fatal_bytes(text: &str) -> [u8; AGENT_MESSAGE_SIZE] {
        encode(0, (6, 0, [0; 3], text))
    }

    /// A `Failed` message, made without the heap.
    pub fn failed_bytes(pid: u32, text: &str) -> [u8; AGENT_MESSAGE_SIZE] {
        encode(pid, (3, 0, [0; 3], text))
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
        let node = raw.node.get();
        let [value, second, third] = raw.values.map(|value| value.get());
        let body = match raw.kind.get() {
            1 => AgentMessageBody::Hello { text },
            2 => AgentMessageBody::Ready,
            3 => AgentMessageBody::Failed { text },
            4 => AgentMessageBody::NodeLost {
                node,
                pages: value,
                text,
            },
            5 => AgentMessageBody::FarMemoryFull { text },
            6 => AgentMessageBody::Fatal { text },
            7 => AgentMessageBody::Done,
            8 => AgentMessageBody::Forked,
            9 => AgentMessageBody::Notice { text },
            10 if third <= 1 => AgentMessageBody::Usage(Usage {
                resident_bytes: value,
                needed_bytes: second,
                pressed: third == 1,
                spaces: node,
            }),
            11 => AgentMessageBody::Holds { bytes: value },
            12 => AgentMessageBody::Hand {
                program: node,
                address: value,
            },
            13 => AgentMessageBody::NeedsDevice,
            14 => AgentMessageBody::Handshake { features: value },
            _ => return Err(ControlError::Malformed),
        };
        Ok(Self {
            pid: raw.pid.get(),
            body,
        })
    }
}

fn encode(
    pid: u32,
    (kind, node, values, text): (u32, u32, [u64; 3], &str),
) -> [u8; AGENT_MESSAGE_SIZE] {
    let text = &text[..text.floor_char_boundary(TEXT_SIZE)];
    let mut raw = RawAgentMessage {
        magic: MAGIC_AGENT.into(),
        version: CONTROL_VERSION.into(),
        kind: kind.into(),
        pid: pid.into(),
        node: node.into(),
        text_length: (text.len() as u32).into(),
        values: values.map(U64::from),
        text: [0; TEXT_SIZE],
    };
    raw.text[..text.len()].copy_from_slice(text.as_bytes());
    let mut bytes = [0; AGENT_MESSAGE_SIZE];
    bytes.copy_from_slice(raw.as_bytes());
    bytes
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
            AgentMessageBody::Usage(Usage {
                resident_bytes: 1 << 33,
                needed_bytes: 1 << 34,
                pressed: true,
                spaces: 3,
            }),
            AgentMessageBody::Holds { bytes: 1 << 35 },
            AgentMessageBody::Hand {
                program: 12,
                address: 0x7fff_0000_1000,
            },
            AgentMessageBody::NeedsDevice,
            AgentMessageBody::Handshake { features: 1 << 40 },
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
    fn a_failure_made_without_the_heap_is_understood() {
        let text = "no room".to_string();
        let bytes = AgentMessage::failed_bytes(7, &text);
        let body = AgentMessageBody::Failed { text };
        assert_eq!(
            AgentMessage::parse(&bytes),
            Ok(AgentMessage { pid: 7, body })
        );
    }

    // P-28
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
        bytes[4] = CONTROL_VERSION as u8;
        bytes[20..24].fill(0xff);
        assert_eq!(AgentMessage::parse(&bytes), Err(ControlError::Malformed));
        let mut bytes = AgentMessage {
            pid: 1,
            body: AgentMessageBody::Usage(Usage::default()),
        }
        .to_bytes();
        // Neither pressed nor not.
        bytes[40] = 2;
        assert_eq!(AgentMessage::parse(&bytes), Err(ControlError::Malformed));
    }
}
