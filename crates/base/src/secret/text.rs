//! A secret as a line of text: a word that names format and version, the secret, and a part of its
//! hash, so that a line that was cut or mistyped is noticed.

use super::{SECRET_LENGTH, Secret, derive};
use alloc::string::String;

const WORD: &str = "legato-secret-1";
const CHECK_LABEL: &[u8] = b"legato secret text 1";
/// Bytes of the check.
const CHECK_LENGTH: usize = 4;
/// Characters of the line, without its end.
pub const SECRET_TEXT_LENGTH: usize = WORD.len() + 1 + 2 * SECRET_LENGTH + 1 + 2 * CHECK_LENGTH;
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Why a text is no secret. It never says what the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretTextError {
    #[error("it does not begin with `{WORD}`")]
    Word,
    #[error(
        "its line has {0} characters and not {SECRET_TEXT_LENGTH}: it was cut, or is of another kind"
    )]
    Length(usize),
    #[error("character {0} of its line is none that belongs there")]
    Character(usize),
    #[error("its check does not match: it was changed")]
    Check,
}

impl Secret {
    /// One line, without its end.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(SECRET_TEXT_LENGTH);
        text.push_str(WORD);
        text.push(' ');
        push_hex(&mut text, &self.0);
        text.push(' ');
        push_hex(&mut text, &self.check());
        text
    }

    /// # Errors
    /// The first thing that is wrong.
    pub fn from_text(text: &str) -> Result<Self, SecretTextError> {
        let line = text.trim_end_matches(['\n', '\r']);
        let bytes = line.as_bytes();
        if !line.starts_with(WORD) {
            return Err(SecretTextError::Word);
        }
        if bytes.len() != SECRET_TEXT_LENGTH {
            return Err(SecretTextError::Length(bytes.len()));
        }
        let secret_at = WORD.len() + 1;
        let check_at = secret_at + 2 * SECRET_LENGTH + 1;
        for space in [secret_at - 1, check_at - 1] {
            if bytes[space] != b' ' {
                return Err(SecretTextError::Character(space + 1));
            }
        }
        let secret = Self(hex(bytes, secret_at)?);
        let check: [u8; CHECK_LENGTH] = hex(bytes, check_at)?;
        match check == secret.check() {
            true => Ok(secret),
            false => Err(SecretTextError::Check),
        }
    }

    fn check(&self) -> [u8; CHECK_LENGTH] {
        let hash = derive(&self.0, CHECK_LABEL);
        [hash[0], hash[1], hash[2], hash[3]]
    }
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// `N` bytes from two digits each. The line is long enough.
fn hex<const N: usize>(line: &[u8], at: usize) -> Result<[u8; N], SecretTextError> {
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        for place in [at + 2 * index, at + 2 * index + 1] {
            let digit = DIGITS.iter().position(|digit| *digit == line[place]);
            let digit = digit.ok_or(SecretTextError::Character(place + 1))?;
            *byte = *byte << 4 | digit as u8;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    fn secret() -> Secret {
        Secret::new(core::array::from_fn(|index| 7 * index as u8))
    }

    #[test]
    fn the_text_of_version_one_never_changes() {
        let text = secret().to_text();
        assert_eq!(text.len(), SECRET_TEXT_LENGTH);
        let expected =
            "legato-secret-1 00070e151c232a31383f464d545b626970777e858c939aa1a8afb6bdc4cbd2d9 ";
        assert!(text.starts_with(expected), "{text}");
        for text in [text.clone(), format!("{text}\n"), format!("{text}\r\n")] {
            assert_eq!(Secret::from_text(&text), Ok(secret()));
        }
    }

    #[test]
    fn a_text_that_was_cut_is_noticed() {
        let text = secret().to_text();
        for length in 0..text.len() {
            let error = Secret::from_text(&text[..length]);
            let expected = match length < WORD.len() {
                true => SecretTextError::Word,
                false => SecretTextError::Length(length),
            };
            assert_eq!(error, Err(expected));
        }
        assert!(Secret::from_text(&format!("{text} ")).is_err());
    }

    #[test]
    fn every_changed_character_is_noticed() {
        let text = secret().to_text();
        for place in 0..text.len() {
            for other in ['0', '1', 'f', 'F', ' ', 'x', '2'] {
                let mut changed = text.clone();
                changed.replace_range(place..=place, &format!("{other}"));
                let is_same = changed == text;
                assert_eq!(
                    Secret::from_text(&changed).is_ok(),
                    is_same,
                    "{place} {other}"
                );
            }
        }
    }
}
