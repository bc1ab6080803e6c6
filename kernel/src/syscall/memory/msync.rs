//! `msync`

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;
use quire::vm::vma::VmaFlags;

use super::page_range;
use crate::errno::Errno;
use crate::files::stored;
use crate::syscall::{Answer, Call};

const KNOWN: u32 = abi::MS_ASYNC | abi::MS_INVALIDATE | abi::MS_SYNC;

impl Call<'_> {
    /// `msync`. All mappings of a file show the same pages, so there is nothing to invalidate; and dirty pages are
    /// written in time, so that `MS_ASYNC` has nothing to begin.
    pub(in crate::syscall) fn msync(&self) -> Answer {
        let [start, len, flags, ..] = self.arguments;
        let flags = flags as u32;
        let has = |flag| flags & flag != 0;
        if flags & !KNOWN != 0 || !start.is_multiple_of(FRAME_SIZE) || has(abi::MS_ASYNC) && has(abi::MS_SYNC)
        {
            return Err(Errno::EINVAL);
        }
        // Wraps like Linux' arithmetic: lengths close to 2^64 become 0.
        let len = len.wrapping_add(FRAME_SIZE - 1) & !(FRAME_SIZE - 1);
        let range = page_range(VirtAddr(start), len).ok_or(Errno::ENOMEM)?;
        let (mut covered, mut locked, mut of_file) = (range.start, false, false);
        self.space.vmas_in(range, |vma| {
            if vma.range.start <= covered {
                covered = vma.range.end;
            }
            locked |= vma.flags.contains(VmaFlags::LOCKED);
            of_file |= vma.file_number != 0 && vma.flags.contains(VmaFlags::SHARED);
        });
        if has(abi::MS_INVALIDATE) && locked {
            return Err(Errno::EBUSY);
        }
        if has(abi::MS_SYNC) {
            self.space.msync(range.start, len)?;
            if of_file {
                stored::flush_all()?;
            }
        }
        if covered < range.end { Err(Errno::ENOMEM) } else { Ok(0) }
    }
}
