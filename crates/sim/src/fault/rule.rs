//! Rules: where, when, how often, and what.

use super::{CompletionFate, EventFate, Link};
use legato_base::{Duration, Random, Time};
use legato_transport::WorkQueue;
use legato_verbs::{ConnectionEvent, Event, VerbsError};
use std::fmt;

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub scope: Scope,
    /// Not before.
    pub from: Time,
    /// Not any more.
    pub until: Time,
    pub frequency: Frequency,
    /// Not more often than this, all places together.
    pub most: u64,
    pub effect: Effect,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    /// What a machine sends and receives, and what its NIC does.
    Machine(usize),
    /// For packets only.
    Link(Link),
}

/// Which of the things in its scope a rule applies to, counted at each place by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    Always,
    Chance {
        numerator: u32,
        denominator: u32,
    },
    /// The n-th, the 2n-th and so on.
    EveryNth(u64),
    /// The first so many.
    First(u64),
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Packet(PacketEffect),
    Completion {
        /// Those of both queues if it is not said.
        of: Option<WorkQueue>,
        effect: CompletionEffect,
    },
    Post {
        of: Option<WorkQueue>,
        refusal: Refusal,
    },
    Event {
        of: Events,
        effect: EventEffect,
    },
}

/// A length of time that is drawn anew each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub least: Duration,
    pub most: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketEffect {
    Drop,
    Delay(Span),
    /// A copy arrives so much later.
    Duplicate(Span),
    /// It is held back up to so long, and what was sent later overtakes it.
    Reorder(Duration),
    /// A bit is flipped.
    Corrupt,
    /// The link carries no more than this.
    Slow {
        bytes_per_second: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionEffect {
    Lose,
    /// It comes twice at once.
    Duplicate,
    Delay(Span),
    /// It comes, and comes again when it is long forgotten.
    Stale(Span),
}

/// Why a post is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    QueueFull,
    /// ENOMEM, as `ibv_post_send(3)` returns it.
    NoMemory,
}

/// Which events a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// Asynchronous ones and those of connections.
    All,
    Asynchronous,
    /// Those of connections, but for the two that a program waits for, which follow.
    Connection,
    /// A peer asks to be connected.
    Requested,
    /// A connection is there.
    Established,
    /// A completion queue that was armed is not empty.
    Ready,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventEffect {
    Lose,
    Delay(Span),
    /// It comes so many times in all.
    Repeat(u32),
}

impl Rule {
    /// For ever and everywhere.
    pub const fn new(frequency: Frequency, effect: Effect) -> Self {
        Self {
            scope: Scope::All,
            from: Time::ZERO,
            until: Time::NEVER,
            frequency,
            most: u64::MAX,
            effect,
        }
    }

    /// So many in a hundred packets of every link.
    pub const fn packets(per_cent: u32, effect: PacketEffect) -> Self {
        let frequency = Frequency::Chance {
            numerator: per_cent,
            denominator: 100,
        };
        Self::new(frequency, Effect::Packet(effect))
    }

    /// Nothing passes a link in this direction.
    pub const fn one_way_cut(link: Link) -> Self {
        Self::new(Frequency::Always, Effect::Packet(PacketEffect::Drop)).within(Scope::Link(link))
    }

    /// Nothing reaches a machine, and nothing leaves it.
    pub const fn blackhole(machine: usize) -> Self {
        Self::new(Frequency::Always, Effect::Packet(PacketEffect::Drop))
            .within(Scope::Machine(machine))
    }

    #[must_use]
    pub const fn within(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    #[must_use]
    pub const fn between(self, from: Time, until: Time) -> Self {
        Self {
            from,
            until,
            ..self
        }
    }

    #[must_use]
    pub const fn at_most(self, most: u64) -> Self {
        Self { most, ..self }
    }
}

impl Scope {
    pub(super) fn has_link(self, link: Link) -> bool {
        match self {
            Self::All => true,
            Self::Machine(machine) => link.from == machine || link.to == machine,
            Self::Link(own) => own == link,
        }
    }

    pub(super) const fn has_machine(self, machine: usize) -> bool {
        match self {
            Self::All => true,
            Self::Machine(own) => own == machine,
            Self::Link(_) => false,
        }
    }
}

impl Frequency {
    /// Always draws the same amount, so that what is drawn afterwards does not depend on it.
    pub(super) fn hits(self, question: u64, random: &mut Random) -> bool {
        let draw = random.next_u64();
        match self {
            Self::Always => true,
            Self::Chance {
                numerator,
                denominator,
            } => draw % u64::from(denominator.max(1)) < u64::from(numerator),
            Self::EveryNth(nth) => nth > 0 && (question + 1).is_multiple_of(nth),
            Self::First(count) => question < count,
        }
    }
}

impl Span {
    pub const fn exactly(time: Duration) -> Self {
        Self {
            least: time,
            most: time,
        }
    }

    pub(super) fn draw(self, random: &mut Random) -> Duration {
        let width = (self.most - self.least).as_nanos();
        self.least + Duration::from_nanos(random.below(width.saturating_add(1)))
    }
}

impl CompletionEffect {
    pub(super) fn fate(self, random: &mut Random) -> CompletionFate {
        match self {
            Self::Lose => CompletionFate::Lose,
            Self::Duplicate => CompletionFate::Repeat(Duration::ZERO),
            Self::Delay(span) => CompletionFate::Delay(span.draw(random)),
            Self::Stale(span) => CompletionFate::Repeat(span.draw(random)),
        }
    }
}

impl Refusal {
    pub(super) const fn error(self, queue: WorkQueue) -> VerbsError {
        let (name, call) = match queue {
            WorkQueue::Send => ("send", "ibv_post_send"),
            WorkQueue::Receive => ("receive", "ibv_post_recv"),
        };
        match self {
            Self::QueueFull => VerbsError::QueueFull(name),
            // ENOMEM
            Self::NoMemory => VerbsError::System { call, errno: 12 },
        }
    }
}

impl Events {
    pub(crate) const fn has(self, event: &Event) -> bool {
        match self {
            Self::All => Self::Asynchronous.has(event) || Self::Connection.has(event),
            Self::Asynchronous => matches!(event, Event::Async(_)),
            Self::Connection => {
                matches!(event, Event::Connection(_))
                    && !Self::Requested.has(event)
                    && !Self::Established.has(event)
            }
            Self::Requested => {
                matches!(event, Event::Connection(ConnectionEvent::Requested { .. }))
            }
            Self::Established => matches!(
                event,
                Event::Connection(ConnectionEvent::Established { .. })
            ),
            Self::Ready => matches!(event, Event::CompletionQueueReady(_)),
        }
    }
}

impl EventEffect {
    pub(super) fn fate(self, random: &mut Random) -> EventFate {
        match self {
            Self::Lose => EventFate::Lose,
            Self::Delay(span) => EventFate::Delay(span.draw(random)),
            Self::Repeat(times) => EventFate::Repeat(times),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.effect, self.frequency, self.scope)?;
        if self.from > Time::ZERO {
            write!(f, ", from {}", self.from.since(Time::ZERO))?;
        }
        if self.until < Time::NEVER {
            write!(f, ", until {}", self.until.since(Time::ZERO))?;
        }
        if self.most < u64::MAX {
            write!(f, ", at most {} times", self.most)?;
        }
        Ok(())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("everywhere"),
            Self::Machine(machine) => write!(f, "machine {machine}"),
            Self::Link(link) => write!(f, "link {link}"),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}->{}", self.from, self.to)
    }
}

impl fmt::Display for Frequency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Chance {
                numerator,
                denominator,
            } => write!(f, "{numerator} in {denominator}"),
            Self::EveryNth(nth) => write!(f, "one in every {nth}"),
            Self::First(count) => write!(f, "the first {count}"),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most {
            write!(f, "{}", self.least)
        } else {
            write!(f, "{} to {}", self.least, self.most)
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = |of: &Option<WorkQueue>| match of {
            None => "",
            Some(WorkQueue::Send) => "send ",
            Some(WorkQueue::Receive) => "receive ",
        };
        match self {
            Self::Packet(PacketEffect::Drop) => f.write_str("lose packets"),
            Self::Packet(PacketEffect::Delay(span)) => write!(f, "delay packets by {span}"),
            Self::Packet(PacketEffect::Duplicate(span)) => {
                write!(f, "double packets, the copy {span} later")
            }
            Self::Packet(PacketEffect::Reorder(most)) => {
                write!(f, "reorder packets within {most}")
            }
            Self::Packet(PacketEffect::Corrupt) => f.write_str("flip a bit of packets"),
            Self::Packet(PacketEffect::Slow { bytes_per_second }) => {
                write!(f, "slow links down to {bytes_per_second} bytes/s")
            }
            Self::Completion { of, effect } => match effect {
                CompletionEffect::Lose => write!(f, "lose {}completions", queue(of)),
                CompletionEffect::Duplicate => write!(f, "double {}completions", queue(of)),
                CompletionEffect::Delay(span) => {
                    write!(f, "delay {}completions by {span}", queue(of))
                }
                CompletionEffect::Stale(span) => {
                    write!(f, "repeat {}completions {span} later", queue(of))
                }
            },
            Self::Post { of, refusal } => {
                let why = match refusal {
                    Refusal::QueueFull => "a full queue",
                    Refusal::NoMemory => "ENOMEM",
                };
                write!(f, "refuse {}posts with {why}", queue(of))
            }
            Self::Event { of, effect } => {
                let events = match of {
                    Events::All => "events",
                    Events::Asynchronous => "asynchronous events",
                    Events::Connection => "connection events",
                    Events::Requested => "requests for a connection",
                    Events::Established => "events of established connections",
                    Events::Ready => "wake-ups",
                };
                match effect {
                    EventEffect::Lose => write!(f, "lose {events}"),
                    EventEffect::Delay(span) => write!(f, "delay {events} by {span}"),
                    EventEffect::Repeat(times) => write!(f, "raise {events} {times} times"),
                }
            }
        }
    }
}
