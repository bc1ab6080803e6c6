//! A text in memory that may run out, and may be ended early.

use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::errno::Errno;

/// A text that grows as it is written, and ends with an error when there is no memory.
pub struct Text {
    bytes: Vec<u8>,
    /// No more is written once there are so many bytes.
    enough: usize,
}

impl Text {
    /// An empty text of any length.
    pub fn new() -> Self {
        Self { bytes: Vec::new(), enough: usize::MAX }
    }

    /// What `write` writes, and whether that is all: with `enough` bytes or more it ends, after a whole line.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn of(
        enough: usize,
        write: impl FnOnce(&mut dyn Write) -> fmt::Result,
    ) -> Result<(Vec<u8>, bool), Errno> {
        let mut text = Self { bytes: Vec::new(), enough };
        let is_whole = write(&mut text).is_ok();
        if !is_whole && !text.is_full() {
            return Err(Errno::ENOMEM);
        }
        Ok((text.bytes, is_whole))
    }

    fn is_full(&self) -> bool {
        self.bytes.len() >= self.enough && self.bytes.last() == Some(&b'\n')
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_full() {
            return Err(fmt::Error);
        }
        self.bytes.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Writes bytes that are meant to be text. What is none becomes a replacement character.
pub fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        out.write_str(chunk.valid())?;
        if !chunk.invalid().is_empty() {
            out.write_char(char::REPLACEMENT_CHARACTER)?;
        }
    }
    Ok(())
}

/// The same for a path or a name in a line of columns: a line feed would end the line.
pub(super) fn write_name(out: &mut dyn Write, bytes: &[u8]) -> fmt::Result {
    for (at, part) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if at > 0 {
            out.write_str("\\012")?;
        }
        write_bytes(out, part)?;
    }
    Ok(())
}
