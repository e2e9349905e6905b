//! A refusal of a call on its way from the far half to the near one.

use super::codec::{Decoder, Encoder, Malformed};
use alloc::boxed::Box;
use alloc::string::String;
use legato_verbs::{ModifyError, VerbsError};
use once_cell::race::OnceBox;

/// Texts that a process keeps. The far half's are those of its provider's source, a few dozen.
const TEXTS_MAX: usize = 128;
/// What stands for one more.
const SOMETHING: &str = "object";

/// Texts of refusals, each kept once and for the rest of the process: [`VerbsError`] has texts that
/// stay. The used places come first.
#[derive(Debug)]
pub(super) struct Texts([OnceBox<String>; TEXTS_MAX]);

/// Those of all near halves of this process.
pub(super) static TEXTS: Texts = Texts::new();

impl Texts {
    const fn new() -> Self {
        Self([const { OnceBox::new() }; TEXTS_MAX])
    }

    pub(super) fn keep(&'static self, text: &str) -> &'static str {
        // A place that is free takes it. Whoever was faster may have put another text there.
        let put = |place: &'static OnceBox<String>| {
            place.get_or_init(|| Box::new(String::from(text))).as_str()
        };
        let mut kept = self.0.iter().map(put);
        kept.find(|&kept| kept == text).unwrap_or(SOMETHING)
    }
}

impl Encoder<'_> {
    pub(super) fn refusal(&mut self, error: VerbsError) {
        let code = match error {
            VerbsError::QueueFull(_) => 1,
            VerbsError::InvalidState(_) => 2,
            VerbsError::CompletionQueueTooSmall { .. } => 3,
            VerbsError::UnknownHandle(_) => 4,
            VerbsError::Busy(_) => 5,
            VerbsError::LimitExceeded { .. } => 6,
            VerbsError::Attributes(_) => 7,
            VerbsError::CompletionQueueOverrun => 8,
            VerbsError::DeviceRemoved => 9,
            VerbsError::Unsupported(_) => 10,
            VerbsError::LocalProtection => 11,
            VerbsError::AddressInUse => 12,
            VerbsError::UnsupportedAddress => 13,
            VerbsError::PermissionDenied => 14,
            VerbsError::System { .. } => 15,
        };
        self.u8(code);
        match error {
            VerbsError::QueueFull(text)
            | VerbsError::UnknownHandle(text)
            | VerbsError::Busy(text)
            | VerbsError::Unsupported(text) => self.bytes(text.as_bytes()),
            VerbsError::InvalidState(state) => self.state(state),
            VerbsError::CompletionQueueTooSmall { needed, free } => {
                self.u32(needed);
                self.u32(free);
            }
            VerbsError::LimitExceeded { what, asked, limit } => {
                self.bytes(what.as_bytes());
                self.u64(asked);
                self.u64(limit);
            }
            VerbsError::Attributes(error) => self.modify_error(error),
            VerbsError::System { call, errno } => {
                self.bytes(call.as_bytes());
                self.u32(errno.cast_unsigned());
            }
            VerbsError::CompletionQueueOverrun
            | VerbsError::DeviceRemoved
            | VerbsError::LocalProtection
            | VerbsError::AddressInUse
            | VerbsError::UnsupportedAddress
            | VerbsError::PermissionDenied => {}
        }
    }

    fn modify_error(&mut self, error: ModifyError) {
        match error {
            ModifyError::Transition { from, to } => {
                self.u8(1);
                self.state(from);
                self.state(to);
            }
            ModifyError::OtherState(state) => {
                self.u8(2);
                self.state(state);
            }
            ModifyError::Missing(name) => {
                self.u8(3);
                self.bytes(name.as_bytes());
            }
            ModifyError::Foreign(name) => {
                self.u8(4);
                self.bytes(name.as_bytes());
            }
            ModifyError::OutOfRange { attribute, limit } => {
                self.u8(5);
                self.bytes(attribute.as_bytes());
                self.u8(limit);
            }
        }
    }
}

impl Decoder<'_> {
    pub(super) fn refusal(&mut self) -> Result<VerbsError, Malformed> {
        let code = self.u8()?;
        Ok(match code {
            1 => VerbsError::QueueFull(TEXTS.keep(self.text()?)),
            2 => VerbsError::InvalidState(self.state()?),
            3 => VerbsError::CompletionQueueTooSmall {
                needed: self.u32()?,
                free: self.u32()?,
            },
            4 => VerbsError::UnknownHandle(TEXTS.keep(self.text()?)),
            5 => VerbsError::Busy(TEXTS.keep(self.text()?)),
            6 => VerbsError::LimitExceeded {
                what: TEXTS.keep(self.text()?),
                asked: self.u64()?,
                limit: self.u64()?,
            },
            7 => VerbsError::Attributes(self.modify_error()?),
            8 => VerbsError::CompletionQueueOverrun,
            9 => VerbsError::DeviceRemoved,
            10 => VerbsError::Unsupported(TEXTS.keep(self.text()?)),
            11 => VerbsError::LocalProtection,
            12 => VerbsError::AddressInUse,
            13 => VerbsError::UnsupportedAddress,
            14 => VerbsError::PermissionDenied,
            15 => VerbsError::System {
                call: TEXTS.keep(self.text()?),
                errno: self.u32()?.cast_signed(),
            },
            _ => return Err(Malformed),
        })
    }

    fn modify_error(&mut self) -> Result<ModifyError, Malformed> {
        Ok(match self.u8()? {
            1 => ModifyError::Transition {
                from: self.state()?,
                to: self.state()?,
            },
            2 => ModifyError::OtherState(self.state()?),
            3 => ModifyError::Missing(TEXTS.keep(self.text()?)),
            4 => ModifyError::Foreign(TEXTS.keep(self.text()?)),
            5 => ModifyError::OutOfRange {
                attribute: TEXTS.keep(self.text()?),
                limit: self.u8()?,
            },
            _ => return Err(Malformed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use legato_verbs::QueuePairState;

    #[test]
    fn refusals_survive_a_round_trip() {
        let (from, to) = (QueuePairState::Init, QueuePairState::Error);
        let refusals = [
            VerbsError::QueueFull("send"),
            VerbsError::InvalidState(from),
            VerbsError::CompletionQueueTooSmall { needed: 9, free: 1 },
            VerbsError::UnknownHandle("queue pair"),
            VerbsError::Busy("region"),
            VerbsError::LimitExceeded {
                what: "bytes",
                asked: u64::MAX,
                limit: 7,
            },
            VerbsError::Attributes(ModifyError::Transition { from, to }),
            VerbsError::Attributes(ModifyError::OtherState(to)),
            VerbsError::Attributes(ModifyError::Missing("timeout")),
            VerbsError::Attributes(ModifyError::Foreign("port")),
            VerbsError::Attributes(ModifyError::OutOfRange {
                attribute: "timeout",
                limit: 31,
            }),
            VerbsError::CompletionQueueOverrun,
            VerbsError::DeviceRemoved,
            VerbsError::Unsupported("windows"),
            VerbsError::LocalProtection,
            VerbsError::AddressInUse,
            VerbsError::UnsupportedAddress,
            VerbsError::PermissionDenied,
            VerbsError::System {
                call: "mmap",
                errno: 12,
            },
        ];
        for refusal in refusals {
            let mut bytes = Vec::new();
            Encoder(&mut bytes).refusal(refusal);
            let mut decoder = Decoder(&bytes);
            assert_eq!(decoder.refusal(), Ok(refusal));
            assert_eq!(decoder.finish(), Ok(()));
            for length in 0..bytes.len() {
                assert!(Decoder(&bytes[..length]).refusal().is_err());
            }
        }
        assert_eq!(Decoder(&[0]).refusal(), Err(Malformed));
        assert_eq!(Decoder(&[16]).refusal(), Err(Malformed));
    }

    #[test]
    fn texts_are_kept_once_and_not_without_end() {
        static TEXTS: Texts = Texts::new();
        let first = TEXTS.keep("send");
        assert!(core::ptr::eq(first, TEXTS.keep("send")));
        for number in 0..2 * TEXTS_MAX {
            TEXTS.keep(&alloc::format!("text {number}"));
        }
        assert!(TEXTS.0.iter().all(|place| place.get().is_some()));
        assert_eq!(TEXTS.keep("text 7"), "text 7");
        assert_eq!(TEXTS.keep("one more"), SOMETHING);
        assert_eq!(TEXTS.keep("send"), "send");
    }
}
