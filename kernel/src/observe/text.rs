//! A text in memory that may run out.

use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::errno::Errno;

/// A text that grows as it is written, and ends with an error when there is no memory.
#[derive(Default)]
pub struct Text(Vec<u8>);

impl Text {
    /// What `write` writes.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn of(write: impl FnOnce(&mut dyn Write) -> fmt::Result) -> Result<Vec<u8>, Errno> {
        let mut text = Self::default();
        write(&mut text).map_err(|_| Errno::ENOMEM)?;
        Ok(text.0)
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Writes bytes that are meant to be text. What is none becomes a replacement character.
pub(super) fn write_bytes(out: &mut dyn Write, bytes: &[u8]) -> fmt::Result {
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
