//! Text without a heap.

use core::fmt;

/// A line of text in fixed memory, for when the heap cannot be relied on.
#[derive(Debug)]
pub(crate) struct FixedLine {
    bytes: [u8; 512],
    length: usize,
}

impl Default for FixedLine {
    fn default() -> Self {
        Self {
            bytes: [0; 512],
            length: 0,
        }
    }
}

impl FixedLine {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Without a character that was cut in half at the end.
    pub(crate) fn as_str(&self) -> &str {
        let bytes = self.as_bytes();
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl fmt::Write for FixedLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        if taken < text.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}
