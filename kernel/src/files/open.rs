//! The files that a program has open.

use alloc::string::String;
use alloc::vec::Vec;

use quire::platform::FileId;

use super::{initramfs, proc};
use crate::errno::Errno;

/// The descriptors of standard input, output and error.
const STANDARD: usize = 3;
/// The most that may be open at once.
const MOST: usize = 64;

/// A program's descriptors, without the standard ones.
#[derive(Clone, Default)]
pub struct OpenFiles {
    open: Vec<Option<OpenFile>>,
}

/// An open file and the position of the next read.
#[derive(Clone)]
struct OpenFile {
    content: Content,
    position: usize,
}

#[derive(Clone)]
enum Content {
    Archive(initramfs::File),
    Text(String),
}

impl OpenFiles {
    /// The files that stay open when the process executes another program.
    pub fn for_program(&self) -> Self {
        self.clone()
    }

    /// Opens a file for reading and returns the lowest free descriptor.
    ///
    /// # Errors
    /// [`Errno::ENOENT`], [`Errno::EMFILE`].
    pub fn open(&mut self, path: &str) -> Result<u64, Errno> {
        let archived = || initramfs::find(path).map(Content::Archive);
        let content = proc::text(path).map(Content::Text).or_else(archived).ok_or(Errno::ENOENT)?;
        let file = Some(OpenFile { content, position: 0 });
        let free = self.open.iter().position(Option::is_none).unwrap_or(self.open.len());
        if free == MOST {
            return Err(Errno::EMFILE);
        }
        if free == self.open.len() {
            self.open.push(file);
        } else {
            self.open[free] = file;
        }
        Ok((free + STANDARD) as u64)
    }

    /// Closes a file.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn close(&mut self, descriptor: u64) -> Result<(), Errno> {
        let slot = index(descriptor).and_then(|index| self.open.get_mut(index));
        slot.and_then(Option::take).map(drop).ok_or(Errno::EBADF)
    }

    /// The next bytes of a file, at most `most`, which count as read if `take` succeeds with them.
    ///
    /// # Errors
    /// [`Errno::EBADF`], and that of `take`.
    pub fn read(
        &mut self,
        descriptor: u64,
        most: u64,
        take: impl FnOnce(&[u8]) -> Result<(), Errno>,
    ) -> Result<u64, Errno> {
        let slot = index(descriptor).and_then(|index| self.open.get_mut(index));
        let file = slot.and_then(Option::as_mut).ok_or(Errno::EBADF)?;
        let rest = &file.content.bytes()[file.position..];
        let part = &rest[..rest.len().min(usize::try_from(most).unwrap_or(usize::MAX))];
        take(part)?;
        let count = part.len();
        file.position += count;
        Ok(count as u64)
    }

    /// Quire's number of an open file that can be mapped.
    ///
    /// # Errors
    /// [`Errno::EBADF`]; [`Errno::ENODEV`] for a file that has no pages.
    pub fn mappable(&self, descriptor: u64) -> Result<FileId, Errno> {
        let slot = index(descriptor).and_then(|index| self.open.get(index));
        match slot.and_then(Option::as_ref).ok_or(Errno::EBADF)?.content {
            Content::Archive(file) => Ok(file.id),
            Content::Text(_) => Err(Errno::ENODEV),
        }
    }
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Archive(file) => file.bytes,
            Self::Text(text) => text.as_bytes(),
        }
    }
}

fn index(descriptor: u64) -> Option<usize> {
    usize::try_from(descriptor).ok()?.checked_sub(STANDARD)
}
