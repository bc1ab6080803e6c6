//! Where the bytes of a read go, and where those of a write come from: a program's memory, or the kernel's.
//!
//! Files copy through a [`Chunk`] of kernel memory and hold no lock of a page while they copy from or to a
//! program. So a program may pass a buffer that is a mapping of the very file.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut, Range};

use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;

use crate::errno::Errno;
use crate::memory::user::UserMemory;
use crate::task::sched;

/// The most bytes of one call, as in Linux (`MAX_RW_COUNT`).
pub const MOST_BYTES: u64 = 0x7fff_f000;

/// Takes the bytes of a read.
pub trait Sink {
    /// How many bytes it still takes.
    fn left(&self) -> usize;

    /// Takes bytes, not more than [`left`](Self::left). Returns how many before a fault.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] when the first byte faults.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno>;
}

/// Gives the bytes of a write.
pub trait Source {
    /// How many bytes it still has.
    fn left(&self) -> usize;

    /// Fills `bytes`, not more than [`left`](Self::left). Returns how many before a fault.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] when the first byte faults.
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize, Errno>;
}

/// Parts of a program's memory: a buffer, or those of an array of `struct iovec`.
pub struct UserParts<'s> {
    memory: UserMemory<'s>,
    part: Range<u64>,
    rest: vec::IntoIter<Range<u64>>,
    left: u64,
}

impl<'s> UserParts<'s> {
    /// One buffer.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] when it is not among a program's addresses.
    pub fn one(memory: UserMemory<'s>, start: VirtAddr, bytes: u64) -> Result<Self, Errno> {
        let part = range(memory, start.0, bytes)?;
        let rest = Vec::new().into_iter();
        Ok(Self { memory, part, rest, left: bytes.min(MOST_BYTES) })
    }

    /// Several buffers: address and length of each.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] when one is not among a program's addresses; [`Errno::EINVAL`] when the sum of the lengths does not
    /// fit.
    pub fn many(memory: UserMemory<'s>, buffers: &[[u64; 2]]) -> Result<Self, Errno> {
        let mut parts = Vec::new();
        parts.try_reserve_exact(buffers.len()).map_err(|_| Errno::ENOMEM)?;
        let mut left = 0u64;
        for &[start, bytes] in buffers {
            left = left.checked_add(bytes).filter(|sum| *sum <= i64::MAX as u64).ok_or(Errno::EINVAL)?;
            parts.push(range(memory, start, bytes)?);
        }
        Ok(Self { memory, part: 0..0, rest: parts.into_iter(), left: left.min(MOST_BYTES) })
    }

    /// Calls `copy` for pieces that each lie in one page, until `bytes` are done or one faults.
    fn each_piece(
        &mut self,
        bytes: usize,
        mut copy: impl FnMut(UserMemory<'s>, VirtAddr, Range<usize>) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < bytes {
            if self.part.is_empty() {
                let Some(next) = self.rest.next() else { break };
                self.part = next;
                continue;
            }
            let to_page_end = FRAME_SIZE - self.part.start % FRAME_SIZE;
            let piece = to_page_end.min(self.part.end - self.part.start).min((bytes - done) as u64);
            match copy(self.memory, VirtAddr(self.part.start), done..done + piece as usize) {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
            self.part.start += piece;
            self.left -= piece;
            done += piece as usize;
        }
        Ok(done)
    }
}

/// A range of addresses, which must be a program's, mapped or not.
fn range(memory: UserMemory<'_>, start: u64, bytes: u64) -> Result<Range<u64>, Errno> {
    let end = start.checked_add(bytes).filter(|end| *end <= memory.end().0).ok_or(Errno::EFAULT)?;
    Ok(start..end)
}

impl Sink for UserParts<'_> {
    fn left(&self) -> usize {
        self.left as usize
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.each_piece(bytes.len(), |memory, to, part| memory.write(to, &bytes[part]))
    }
}

impl Source for UserParts<'_> {
    fn left(&self) -> usize {
        self.left as usize
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.each_piece(bytes.len(), |memory, from, part| memory.read(from, &mut bytes[part]))
    }
}

/// Takes bytes to memory of the kernel.
pub struct KernelSink<'b> {
    bytes: &'b mut [u8],
    done: usize,
}

impl<'b> KernelSink<'b> {
    /// Nothing is written yet.
    pub fn new(bytes: &'b mut [u8]) -> Self {
        Self { bytes, done: 0 }
    }
}

impl Sink for KernelSink<'_> {
    fn left(&self) -> usize {
        self.bytes.len() - self.done
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.bytes[self.done..][..bytes.len()].copy_from_slice(bytes);
        self.done += bytes.len();
        Ok(bytes.len())
    }
}

/// Gives bytes of the kernel.
pub struct KernelSource<'b>(pub &'b [u8]);

impl Source for KernelSource<'_> {
    fn left(&self) -> usize {
        self.0.len()
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let (taken, rest) = self.0.split_at(bytes.len());
        bytes.copy_from_slice(taken);
        self.0 = rest;
        Ok(bytes.len())
    }
}

const SMALL: usize = 256;
const LARGE: usize = 16 << 10;

/// Memory through which a call copies: on the stack for few bytes.
#[expect(clippy::large_enum_variant, reason = "a small chunk shall stand on the stack")]
pub enum Chunk {
    /// Few bytes.
    Small([u8; SMALL], usize),
    /// More.
    Large(Vec<u8>),
}

impl Chunk {
    /// A chunk for a call about `bytes` bytes.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn for_bytes(bytes: usize) -> Result<Self, Errno> {
        if bytes <= SMALL {
            return Ok(Self::Small([0; SMALL], bytes));
        }
        let mut chunk = Vec::new();
        chunk.try_reserve_exact(bytes.min(LARGE)).map_err(|_| Errno::ENOMEM)?;
        chunk.resize(bytes.min(LARGE), 0);
        Ok(Self::Large(chunk))
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Small(bytes, len) => &bytes[..*len],
            Self::Large(bytes) => bytes,
        }
    }
}

impl DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(bytes, len) => &mut bytes[..*len],
            Self::Large(bytes) => bytes,
        }
    }
}

/// Gives a reader bytes that `make` stores, a chunk at a time: it is called with a part of the chunk that has what the last
/// call left there, or zeroes.
///
/// # Errors
/// [`Errno::EFAULT`], [`Errno::ENOMEM`].
pub fn produce(to: &mut dyn Sink, make: fn(&mut [u8])) -> Result<usize, Errno> {
    let mut chunk = Chunk::for_bytes(to.left())?;
    let mut done = 0;
    while to.left() > 0 {
        let part = chunk.len().min(to.left());
        make(&mut chunk[..part]);
        match to.put(&chunk[..part]) {
            Ok(put) => {
                done += put;
                if put < part || sched::call_shall_end() {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
