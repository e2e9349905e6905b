//! Calls of the near half, each checked and answered.

use super::super::call::{Answer, Call, Device, RegionId, VERSION};
use super::super::rings::OwnRing;
use super::super::{MEMORY_BYTES_MAX, OBJECTS_MAX};
use super::served::{ServedPair, ServedRegion};
use super::{ProxyEnd, ProxyServer};
use crate::memory::{self, Writers};
use crate::{ForeignMemory, Pollable};
use legato_verbs::{
    AccessFlags, CompletionQueue, ProtectionDomain, Provider, QueuePair, QueuePairCapabilities,
    QueuePairInit, QueuePairState, VerbsError,
};
use rustix::fd::OwnedFd;

/// Why there is no good answer.
enum Fault {
    /// The near half is told.
    Refused(VerbsError),
    /// It cannot be, from an honest near half.
    Breach(&'static str),
}

impl From<VerbsError> for Fault {
    fn from(error: VerbsError) -> Self {
        Self::Refused(error)
    }
}

type Answered = (Result<Answer, VerbsError>, Option<OwnedFd>);

impl<P: Provider + ForeignMemory + Pollable> ProxyServer<P> {
    pub(super) fn answer(
        &mut self,
        call: Call,
        descriptor: Option<OwnedFd>,
    ) -> Result<Answered, ProxyEnd> {
        let mut attached = None;
        let answer = match (&self.rings, &call, descriptor) {
            (None, &Call::Hello { version }, Some(ring)) => {
                self.greet(version, &ring).map(|(answer, own)| {
                    attached = Some(own);
                    answer
                })
            }
            (None, ..) | (Some(_), Call::Hello { .. }, _) => {
                Err(Fault::Breach("a call before or instead of the first"))
            }
            (Some(_), _, Some(_)) => Err(Fault::Breach("a descriptor that nobody asked for")),
            (
                Some(_),
                &Call::AllocateRegion {
                    id,
                    domain,
                    length,
                    access,
                },
                None,
            ) => self
                .allocate(id, domain, length, access)
                .map(|(answer, segment)| {
                    attached = Some(segment);
                    answer
                }),
            (Some(_), _, None) => self.obey(call),
        };
        match answer {
            Ok(answer) => Ok((Ok(answer), attached)),
            Err(Fault::Refused(error)) => Ok((Err(error), None)),
            Err(Fault::Breach(what)) => Err(ProxyEnd::Breach(what)),
        }
    }

    fn greet(&mut self, version: u32, ring: &OwnedFd) -> Result<(Answer, OwnedFd), Fault> {
        if version != VERSION {
            return Err(VerbsError::Unsupported("proxy of that version").into());
        }
        let (own, segment) = OwnRing::create()?;
        let rings = own.join(ring);
        self.rings = Some(rings.map_err(|_| Fault::Breach("a ring that is none"))?);
        let device = Device::new(&self.provider.attributes(), self.provider.port_address());
        Ok((Answer::Hello(device), segment))
    }

    fn allocate(
        &mut self,
        id: RegionId,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<(Answer, OwnedFd), Fault> {
        if self.regions.contains_key(&id) {
            return Err(Fault::Breach("a second region of a name"));
        }
        room("regions of a proxy", self.regions.len())?;
        let left = MEMORY_BYTES_MAX - self.region_bytes;
        if length == 0 || length > left {
            return Err(VerbsError::LimitExceeded {
                what: "bytes of a proxy's regions",
                asked: length,
                limit: left,
            }
            .into());
        }
        let made = memory::create_segment("legato-proxy", length as usize, Writers::Everyone);
        let (segment, mapping) = made?;
        let place = mapping.at(0, length);
        let place = place.ok_or(VerbsError::LocalProtection)?;
        // SAFETY: the mapping is kept beside the region, is unmapped only when the provider has
        // deregistered it, is writable, and nobody makes a reference to its bytes.
        let registered = unsafe {
            self.provider
                .register_foreign(domain, place, length, access)
        };
        let region = registered?;
        let answer = Answer::Region {
            key: region.remote_key,
            address: region.address,
        };
        self.regions.insert(id, ServedRegion { region, mapping });
        self.region_bytes += length;
        Ok((answer, segment))
    }

    fn obey(&mut self, call: Call) -> Result<Answer, Fault> {
        match call {
            Call::ResourceCounts => Ok(Answer::Counts(self.provider.resource_counts())),
            Call::CreateDomain => {
                room("protection domains of a proxy", self.domains.len())?;
                let domain = self.provider.create_protection_domain()?;
                self.domains.insert(domain);
                Ok(Answer::Domain(domain))
            }
            Call::DestroyDomain(domain) => {
                self.provider.destroy_protection_domain(domain)?;
                self.domains.remove(&domain);
                Ok(Answer::Done)
            }
            Call::DeregisterRegion(id) => self.deregister(id),
            Call::CreateQueue { entries } => {
                room("completion queues of a proxy", self.queues.len())?;
                let queue = self.provider.create_completion_queue(entries)?;
                self.queues.insert(queue);
                Ok(Answer::Queue(queue))
            }
            Call::DestroyQueue(queue) => {
                self.provider.destroy_completion_queue(queue)?;
                self.queues.remove(&queue);
                Ok(Answer::Done)
            }
            Call::ArmQueue(queue, arm) => {
                let waits = self.provider.arm_completion_queue(queue, arm)?;
                // What was taken from the queue and is not told yet waits for the near half too.
                Ok(Answer::Waits(waits || self.tells_of(queue)))
            }
            Call::CreatePair {
                domain,
                sends,
                receives,
                capabilities,
            } => self.create_pair(domain, (sends, receives), capabilities),
            Call::DestroyPair(pair) => {
                self.provider.destroy_queue_pair(pair)?;
                self.pairs.remove(&pair);
                self.forget_completions(pair);
                Ok(Answer::Done)
            }
            Call::QueryState(pair) => Ok(Answer::State(self.provider.query_queue_pair(pair)?)),
            Call::QueryAttributes(pair) => {
                Ok(Answer::Attributes(self.provider.query_attributes(pair)?))
            }
            Call::Modify {
                pair,
                to,
                attributes,
            } => {
                self.provider.modify_queue_pair(pair, to, &attributes)?;
                if to == QueuePairState::Reset {
                    self.pairs
                        .get_mut(&pair)
                        .into_iter()
                        .for_each(ServedPair::clear);
                    self.forget_completions(pair);
                }
                self.state(pair)
            }
            call => self.obey_connection(call),
        }
    }

    fn obey_connection(&mut self, call: Call) -> Result<Answer, Fault> {
        match call {
            Call::Listen(address) => {
                room("listeners of a proxy", self.listeners.len())?;
                let listener = self.provider.listen(&address)?;
                self.listeners.insert(listener);
                Ok(Answer::Listener(listener))
            }
            Call::CloseListener(listener) => {
                self.provider.close_listener(listener)?;
                self.listeners.remove(&listener);
                Ok(Answer::Done)
            }
            Call::Connect {
                pair,
                address,
                private,
            } => {
                self.provider.connect(pair, &address, &private)?;
                self.state(pair)
            }
            Call::Accept {
                request,
                pair,
                private,
            } => {
                self.provider.accept(request, pair, &private)?;
                self.state(pair)
            }
            Call::Reject { request, private } => {
                self.provider.reject(request, &private)?;
                Ok(Answer::Done)
            }
            Call::Disconnect(pair) => {
                self.provider.disconnect(pair)?;
                self.state(pair)
            }
            _ => Err(Fault::Breach("a call out of place")),
        }
    }

    fn state(&self, pair: QueuePair) -> Result<Answer, Fault> {
        Ok(Answer::State(self.provider.query_queue_pair(pair)?))
    }

    fn deregister(&mut self, id: RegionId) -> Result<Answer, Fault> {
        let served = self.regions.get(&id);
        let served = served.ok_or(VerbsError::UnknownHandle("region"))?;
        self.provider.deregister_region(&served.region)?;
        if let Some(served) = self.regions.remove(&id) {
            self.region_bytes -= served.mapping.length();
        }
        Ok(Answer::Done)
    }

    fn create_pair(
        &mut self,
        domain: ProtectionDomain,
        queues: (CompletionQueue, CompletionQueue),
        capabilities: QueuePairCapabilities,
    ) -> Result<Answer, Fault> {
        room("queue pairs of a proxy", self.pairs.len())?;
        let init = QueuePairInit {
            receive_completions: queues.1,
            ..QueuePairInit::new(domain, queues.0, capabilities)
        };
        let pair = self.provider.create_queue_pair(&init)?;
        self.pairs
            .insert(pair, ServedPair::new(queues, &capabilities));
        let number = self.provider.queue_pair_number(pair)?;
        Ok(Answer::Pair(pair, number))
    }
}

fn room(what: &'static str, count: usize) -> Result<(), VerbsError> {
    match count < OBJECTS_MAX {
        true => Ok(()),
        false => Err(VerbsError::LimitExceeded {
            what,
            asked: count as u64 + 1,
            limit: OBJECTS_MAX as u64,
        }),
    }
}
