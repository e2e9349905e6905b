//! The rare calls: one packet there, one packet back.

use super::codec::{Decoder, Encoder, Malformed};
use super::refusal::TEXTS;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use legato_verbs::{
    AccessFlags, Address, AddressVector, Arm, CompletionQueue, ConnectionRequest, DeviceAttributes,
    Listener, ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairCapabilities,
    QueuePairNumber, QueuePairState, RemoteKey, ResourceCounts, VerbsError,
};

/// Changes with every layout of this module and of `message`.
pub(super) const VERSION: u32 = 2;

/// Names a region of a near half, which chooses it: never twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RegionId(pub(super) u32);

/// What the near half asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// The first one. Its ring is attached; that of the far half comes with the answer.
    Hello {
        version: u32,
    },
    ResourceCounts,
    CreateDomain,
    DestroyDomain(ProtectionDomain),
    /// The memory comes with the answer.
    AllocateRegion {
        id: RegionId,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    },
    DeregisterRegion(RegionId),
    CreateQueue {
        entries: u32,
    },
    DestroyQueue(CompletionQueue),
    ArmQueue(CompletionQueue, Arm),
    CreatePair {
        domain: ProtectionDomain,
        sends: CompletionQueue,
        receives: CompletionQueue,
        capabilities: QueuePairCapabilities,
    },
    DestroyPair(QueuePair),
    QueryState(QueuePair),
    QueryAttributes(QueuePair),
    Modify {
        pair: QueuePair,
        to: QueuePairState,
        attributes: QueuePairAttributes,
    },
    Listen(Address),
    CloseListener(Listener),
    Connect {
        pair: QueuePair,
        address: Address,
        private: Vec<u8>,
    },
    Accept {
        request: ConnectionRequest,
        pair: QueuePair,
        private: Vec<u8>,
    },
    Reject {
        request: ConnectionRequest,
        private: Vec<u8>,
    },
    Disconnect(QueuePair),
}

impl Call {
    pub(super) fn encode(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Hello { version } => {
                out.u8(1);
                out.u32(*version);
            }
            Self::ResourceCounts => out.u8(2),
            Self::CreateDomain => out.u8(3),
            Self::DestroyDomain(domain) => {
                out.u8(4);
                out.domain(*domain);
            }
            Self::AllocateRegion {
                id,
                domain,
                length,
                access,
            } => {
                out.u8(5);
                out.u32(id.0);
                out.domain(*domain);
                out.u64(*length);
                out.u8(access.bits());
            }
            Self::DeregisterRegion(id) => {
                out.u8(6);
                out.u32(id.0);
            }
            Self::CreateQueue { entries } => {
                out.u8(7);
                out.u32(*entries);
            }
            Self::DestroyQueue(queue) => {
                out.u8(8);
                out.queue(*queue);
            }
            Self::ArmQueue(queue, arm) => {
                out.u8(9);
                out.queue(*queue);
                out.u8(u8::from(*arm == Arm::Solicited));
            }
            Self::CreatePair { .. }
            | Self::DestroyPair(_)
            | Self::QueryState(_)
            | Self::QueryAttributes(_)
            | Self::Modify { .. } => self.encode_pair(out),
            Self::Listen(_)
            | Self::CloseListener(_)
            | Self::Connect { .. }
            | Self::Accept { .. }
            | Self::Reject { .. }
            | Self::Disconnect(_) => self.encode_connection(out),
        }
    }

    fn encode_pair(&self, out: &mut Encoder<'_>) {
        match self {
            Self::CreatePair {
                domain,
                sends,
                receives,
                capabilities,
            } => {
                out.u8(10);
                out.domain(*domain);
                out.queue(*sends);
                out.queue(*receives);
                out.u32(capabilities.send_requests_max);
                out.u32(capabilities.receive_requests_max);
                out.u32(capabilities.entries_max);
            }
            Self::DestroyPair(pair) => {
                out.u8(11);
                out.pair(*pair);
            }
            Self::QueryState(pair) => {
                out.u8(12);
                out.pair(*pair);
            }
            Self::QueryAttributes(pair) => {
                out.u8(13);
                out.pair(*pair);
            }
            Self::Modify {
                pair,
                to,
                attributes,
            } => {
                out.u8(14);
                out.pair(*pair);
                out.state(*to);
                out.attributes(attributes);
            }
            _ => {}
        }
    }

    fn encode_connection(&self, out: &mut Encoder<'_>) {
        match self {
            Self::Listen(address) => {
                out.u8(15);
                out.bytes(address.to_string().as_bytes());
            }
            Self::CloseListener(listener) => {
                out.u8(16);
                out.listener(*listener);
            }
            Self::Connect {
                pair,
                address,
                private,
            } => {
                out.u8(17);
                out.pair(*pair);
                out.bytes(address.to_string().as_bytes());
                out.bytes(private);
            }
            Self::Accept {
                request,
                pair,
                private,
            } => {
                out.u8(18);
                out.connection_request(*request);
                out.pair(*pair);
                out.bytes(private);
            }
            Self::Reject { request, private } => {
                out.u8(19);
                out.connection_request(*request);
                out.bytes(private);
            }
            Self::Disconnect(pair) => {
                out.u8(20);
                out.pair(*pair);
            }
            _ => {}
        }
    }

    pub(super) fn decode(mut bytes: Decoder<'_>) -> Result<Self, Malformed> {
        let from = &mut bytes;
        let call = match from.u8()? {
            1 => Self::Hello {
                version: from.u32()?,
            },
            2 => Self::ResourceCounts,
            3 => Self::CreateDomain,
            4 => Self::DestroyDomain(from.domain()?),
            5 => Self::AllocateRegion {
                id: RegionId(from.u32()?),
                domain: from.domain()?,
                length: from.u64()?,
                access: from.access()?,
            },
            6 => Self::DeregisterRegion(RegionId(from.u32()?)),
            7 => Self::CreateQueue {
                entries: from.u32()?,
            },
            8 => Self::DestroyQueue(from.queue()?),
            9 => Self::ArmQueue(
                from.queue()?,
                match from.flag()? {
                    false => Arm::Next,
                    true => Arm::Solicited,
                },
            ),
            code => Self::decode_more(code, from)?,
        };
        bytes.finish()?;
        Ok(call)
    }

    fn decode_more(code: u8, from: &mut Decoder<'_>) -> Result<Self, Malformed> {
        Ok(match code {
            10 => Self::CreatePair {
                domain: from.domain()?,
                sends: from.queue()?,
                receives: from.queue()?,
                capabilities: QueuePairCapabilities {
                    send_requests_max: from.u32()?,
                    receive_requests_max: from.u32()?,
                    entries_max: from.u32()?,
                },
            },
            11 => Self::DestroyPair(from.pair()?),
            12 => Self::QueryState(from.pair()?),
            13 => Self::QueryAttributes(from.pair()?),
            14 => Self::Modify {
                pair: from.pair()?,
                to: from.state()?,
                attributes: from.attributes()?,
            },
            15 => Self::Listen(address(from)?),
            16 => Self::CloseListener(from.listener()?),
            17 => Self::Connect {
                pair: from.pair()?,
                address: address(from)?,
                private: from.bytes()?.to_vec(),
            },
            18 => Self::Accept {
                request: from.connection_request()?,
                pair: from.pair()?,
                private: from.bytes()?.to_vec(),
            },
            19 => Self::Reject {
                request: from.connection_request()?,
                private: from.bytes()?.to_vec(),
            },
            20 => Self::Disconnect(from.pair()?),
            _ => return Err(Malformed),
        })
    }
}

fn address(from: &mut Decoder<'_>) -> Result<Address, Malformed> {
    from.text()?.parse().map_err(|_| Malformed)
}

/// What the NIC at the far end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) limits: [u32; 6],
    pub(super) port: AddressVector,
}

impl Device {
    pub(super) fn new(attributes: &DeviceAttributes, port: AddressVector) -> Self {
        Self {
            name: attributes.name.to_string(),
            limits: [
                attributes.queue_pairs_max,
                attributes.completion_queue_entries_max,
                attributes.queue_pair_requests_max,
                attributes.entries_max,
                attributes.message_length_max,
                attributes.inline_length_max,
            ],
            port,
        }
    }

    /// A proxy hands on neither shared receive queues nor windows: the pager needs none.
    pub(super) fn attributes(&self) -> DeviceAttributes {
        let [pairs, completions, requests, entries, message, inline] = self.limits;
        DeviceAttributes {
            name: TEXTS.keep(&self.name),
            queue_pairs_max: pairs,
            completion_queue_entries_max: completions,
            queue_pair_requests_max: requests,
            entries_max: entries,
            message_length_max: message,
            inline_length_max: inline,
            shared_receive_queues_max: 0,
            memory_windows_max: 0,
        }
    }
}

/// What the far half answers when it does not refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Hello(Device),
    Counts(ResourceCounts),
    Domain(ProtectionDomain),
    Region {
        key: RemoteKey,
        address: u64,
    },
    Queue(CompletionQueue),
    Waits(bool),
    Pair(QueuePair, QueuePairNumber),
    /// Of the queue pair, after what was asked for.
    State(QueuePairState),
    Attributes(QueuePairAttributes),
    Listener(Listener),
}

impl Answer {
    pub(super) fn encode(answer: &Result<Self, VerbsError>, out: &mut Encoder<'_>) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                out.u8(0);
                out.refusal(*error);
                return;
            }
        };
        match answer {
            Self::Done => out.u8(1),
            Self::Hello(device) => {
                out.u8(2);
                out.bytes(device.name.as_bytes());
                device.limits.iter().for_each(|&limit| out.u32(limit));
                out.0.extend_from_slice(&device.port.destination);
            }
            Self::Counts(counts) => {
                out.u8(3);
                for count in [
                    counts.protection_domains,
                    counts.memory_regions,
                    counts.completion_queues,
                    counts.completion_entries,
                    counts.posted_receives,
                    counts.queue_pairs,
                    counts.listeners,
                    counts.connection_state,
                ] {
                    out.u64(count as u64);
                }
            }
            Self::Domain(domain) => {
                out.u8(4);
                out.domain(*domain);
            }
            Self::Region { key, address } => {
                out.u8(5);
                out.u32(key.0);
                out.u64(*address);
            }
            Self::Queue(queue) => {
                out.u8(6);
                out.queue(*queue);
            }
            Self::Waits(waits) => {
                out.u8(7);
                out.u8(u8::from(*waits));
            }
            Self::Pair(pair, number) => {
                out.u8(8);
                out.pair(*pair);
                out.u32(number.get());
            }
            Self::State(state) => {
                out.u8(9);
                out.state(*state);
            }
            Self::Attributes(attributes) => {
                out.u8(10);
                out.attributes(attributes);
            }
            Self::Listener(listener) => {
                out.u8(11);
                out.listener(*listener);
            }
        }
    }

    pub(super) fn decode(mut bytes: Decoder<'_>) -> Result<Result<Self, VerbsError>, Malformed> {
        let from = &mut bytes;
        let answer = match from.u8()? {
            0 => Err(from.refusal()?),
            1 => Ok(Self::Done),
            2 => Ok(Self::Hello(device(from)?)),
            3 => Ok(Self::Counts(counts(from)?)),
            4 => Ok(Self::Domain(from.domain()?)),
            5 => Ok(Self::Region {
                key: RemoteKey(from.u32()?),
                address: from.u64()?,
            }),
            6 => Ok(Self::Queue(from.queue()?)),
            7 => Ok(Self::Waits(from.flag()?)),
            8 => Ok(Self::Pair(from.pair()?, QueuePairNumber::new(from.u32()?))),
            9 => Ok(Self::State(from.state()?)),
            10 => Ok(Self::Attributes(from.attributes()?)),
            11 => Ok(Self::Listener(from.listener()?)),
            _ => return Err(Malformed),
        };
        bytes.finish()?;
        Ok(answer)
    }
}

fn device(from: &mut Decoder<'_>) -> Result<Device, Malformed> {
    let name = from.text()?.to_string();
    let mut limits = [0; 6];
    for limit in &mut limits {
        *limit = from.u32()?;
    }
    let destination = from.take(16)?.try_into().map_err(|_| Malformed)?;
    Ok(Device {
        name,
        limits,
        port: AddressVector { destination },
    })
}

fn counts(from: &mut Decoder<'_>) -> Result<ResourceCounts, Malformed> {
    let mut count = || from.u64().map(|count| count as usize);
    Ok(ResourceCounts {
        protection_domains: count()?,
        memory_regions: count()?,
        registered_bytes: 0,
        memory_windows: 0,
        completion_queues: count()?,
        completion_entries: count()?,
        shared_receive_queues: 0,
        posted_receives: count()?,
        queue_pairs: count()?,
        listeners: count()?,
        connection_state: count()?,
    })
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
