//! `process_vm_readv` and `process_vm_writev`: copies between the caller's memory and another process's.

use alloc::vec::Vec;

use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;

use crate::errno::Errno;
use crate::memory::user::UserMemory;
use crate::syscall::{Answer, Call};
use crate::task::table;

/// The most ranges on either side (`IOV_MAX`).
const MOST_RANGES: u64 = 1024;
/// The size of `struct iovec`: an address and a length.
const RANGE_BYTES: u64 = 16;
/// The most bytes of one call, as of a read (`MAX_RW_COUNT`).
const MOST_BYTES: u64 = 0x7fff_f000;

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    FromOther,
    ToOther,
}

/// A range of addresses: its start and length.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Call<'_> {
    /// `process_vm_readv`
    pub(in crate::syscall) fn process_vm_readv(&self) -> Answer {
        self.process_vm(Direction::FromOther)
    }

    /// `process_vm_writev`
    pub(in crate::syscall) fn process_vm_writev(&self) -> Answer {
        self.process_vm(Direction::ToOther)
    }

    fn process_vm(&self, direction: Direction) -> Answer {
        let [pid, own, own_count, other, other_count, flags] = self.arguments;
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let own = self.ranges(own, own_count)?;
        if own.iter().all(|range| range.len == 0) {
            return Ok(0);
        }
        let other = self.ranges(other, other_count)?;
        if other.iter().all(|range| range.len == 0) {
            return Ok(0);
        }
        let process = table::process_of(pid as u32).ok_or(Errno::ESRCH)?;
        let space = self.process().traced_space(&process, Errno::EPERM)?;
        self.copy_all(UserMemory::of_other(self.space, &space), &own, &other, direction)
    }

    /// Copies range by range until one side is at its end. What was copied before a bad address counts.
    fn copy_all(&self, other: UserMemory<'_>, own: &[Bytes], ranges: &[Bytes], way: Direction) -> Answer {
        let mut chunk = chunk()?;
        let (mut own, mut theirs) = (Cursor::new(own), Cursor::new(ranges));
        let mut done = 0;
        while let (Some((here, own_left)), Some((there, left))) = (own.rest(), theirs.rest()) {
            if done == MOST_BYTES {
                break;
            }
            // The pages of both sides are looked up one by one, so that a copy ends exactly where one is missing.
            let in_page = |at: u64| FRAME_SIZE - at % FRAME_SIZE;
            let bytes = own_left.min(left).min(MOST_BYTES - done).min(in_page(here)).min(in_page(there));
            let part = &mut chunk[..bytes as usize];
            let copied = match way {
                Direction::FromOther => {
                    other.read(VirtAddr(there), part).and_then(|()| self.memory.write(VirtAddr(here), part))
                }
                Direction::ToOther => {
                    self.memory.read(VirtAddr(here), part).and_then(|()| other.write(VirtAddr(there), part))
                }
            };
            match copied {
                Ok(()) => done += bytes,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
            own.advance(bytes);
            theirs.advance(bytes);
        }
        Ok(done)
    }

    /// Reads an array of `struct iovec`.
    pub(super) fn ranges(&self, at: u64, count: u64) -> Result<Vec<Bytes>, Errno> {
        if count > MOST_RANGES {
            return Err(Errno::EINVAL);
        }
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(count as usize).map_err(|_| Errno::ENOMEM)?;
        for index in 0..count {
            let [start, len] = self.load_words(at.checked_add(index * RANGE_BYTES).ok_or(Errno::EFAULT)?)?;
            if i64::try_from(len).is_err() {
                return Err(Errno::EINVAL);
            }
            ranges.push(Bytes { start, len });
        }
        Ok(ranges)
    }
}

/// A buffer for the bytes of one page.
fn chunk() -> Result<Vec<u8>, Errno> {
    let mut chunk = Vec::new();
    chunk.try_reserve_exact(FRAME_SIZE as usize).map_err(|_| Errno::ENOMEM)?;
    chunk.resize(FRAME_SIZE as usize, 0);
    Ok(chunk)
}

/// A position in a list of ranges.
struct Cursor<'r> {
    ranges: &'r [Bytes],
    done: u64,
}

impl<'r> Cursor<'r> {
    fn new(ranges: &'r [Bytes]) -> Self {
        Self { ranges, done: 0 }
    }

    /// The address at which to go on, and how many bytes the range has left there.
    fn rest(&mut self) -> Option<(u64, u64)> {
        while let Some(first) = self.ranges.first() {
            if self.done < first.len {
                return Some((first.start.wrapping_add(self.done), first.len - self.done));
            }
            (self.ranges, self.done) = (&self.ranges[1..], 0);
        }
        None
    }

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
    }
}
