//! `madvise`

use linux_raw_sys::general as abi;
use quire::addr::{Frame, VirtAddr, VirtRange};
use quire::limits::{FRAME_SHIFT, FRAME_SIZE};
use quire::vm::{Access, Advice};

use super::page_range;
use crate::errno::Errno;
use crate::memory::manager::{Space, manager};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{self, Right};
use crate::task::sched;

impl Call<'_> {
    /// `madvise`
    pub(in crate::syscall) fn madvise(&self) -> Answer {
        let [_, len, advice, ..] = self.arguments;
        advise(self.space, self.addr(0), len, advice as u32)?;
        Ok(0)
    }

    /// `process_madvise`: advices that change nothing but where pages are, for ranges of another process.
    pub(in crate::syscall) fn process_madvise(&self) -> Answer {
        let [descriptor, ranges, count, advice, flags, _] = self.arguments;
        if flags as u32 != 0 {
            return Err(Errno::EINVAL);
        }
        let ranges = self.ranges(ranges, count)?;
        let process = self.process_of(descriptor)?.0;
        let advice = advice as u32;
        if !matches!(advice, abi::MADV_COLD | abi::MADV_PAGEOUT | abi::MADV_WILLNEED | abi::MADV_COLLAPSE) {
            return Err(Errno::EINVAL);
        }
        let space = self.process().traced_space(&process, Errno::EACCES)?;
        if space.number() != self.space.number() {
            credentials::check(Right::Nice)?;
        }
        let mut done = 0;
        for range in ranges {
            match advise(&space, VirtAddr(range.start), range.len, advice) {
                Ok(()) => done += range.len,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
            if sched::call_must_end() {
                break;
            }
        }
        Ok(done)
    }
}

/// Follows an advice about a range.
///
/// # Errors
/// As `madvise(2)`.
pub(super) fn advise(space: &Space, start: VirtAddr, len: u64, advice: u32) -> Result<(), Errno> {
    match advice {
        abi::MADV_HWPOISON => {
            return lose(space, start, len, |frame| {
                manager().memory_failure(frame).map(drop).map_err(|error| Errno::of(error.errno()))
            });
        }
        abi::MADV_SOFT_OFFLINE => return lose(space, start, len, take_offline),
        _ => {}
    }
    Ok(space.madvise(start, len, known(advice).ok_or(Errno::EINVAL)?)?)
}

/// The library's name of an advice. Merging of equal pages (`MADV_MERGEABLE`) is missing, as in a Linux without KSM.
fn known(advice: u32) -> Option<Advice> {
    Some(match advice {
        abi::MADV_NORMAL => Advice::Normal,
        abi::MADV_RANDOM => Advice::Random,
        abi::MADV_SEQUENTIAL => Advice::Sequential,
        abi::MADV_WILLNEED => Advice::WillNeed,
        abi::MADV_DONTNEED => Advice::DontNeed,
        abi::MADV_FREE => Advice::Free,
        abi::MADV_REMOVE => Advice::Remove,
        abi::MADV_DONTFORK => Advice::DontFork,
        abi::MADV_DOFORK => Advice::DoFork,
        abi::MADV_HUGEPAGE => Advice::HugePage,
        abi::MADV_NOHUGEPAGE => Advice::NoHugePage,
        abi::MADV_DONTDUMP => Advice::DontDump,
        abi::MADV_DODUMP => Advice::DoDump,
        abi::MADV_WIPEONFORK => Advice::WipeOnFork,
        abi::MADV_KEEPONFORK => Advice::KeepOnFork,
        abi::MADV_COLD => Advice::Cold,
        abi::MADV_PAGEOUT => Advice::PageOut,
        abi::MADV_POPULATE_READ => Advice::PopulateRead,
        abi::MADV_POPULATE_WRITE => Advice::PopulateWrite,
        abi::MADV_DONTNEED_LOCKED => Advice::DontNeedLocked,
        abi::MADV_COLLAPSE => Advice::Collapse,
        _ => return None,
    })
}

/// Brings each page of a range in, and gives its frame to `end`. The machine has less memory afterwards, which not every
/// program may do.
fn lose(
    space: &Space,
    start: VirtAddr,
    len: u64,
    mut end: impl FnMut(Frame) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if !start.is_aligned(FRAME_SIZE) {
        return Err(Errno::EINVAL);
    }
    let VirtRange { start: mut at, end: stop } = page_range(start, len).ok_or(Errno::EINVAL)?;
    if at < stop {
        credentials::check(Right::Administrate)?;
    }
    while at < stop {
        let Some(leaf) = space.translate(at, Access::Read) else {
            space.fault(at, Access::Read).map_err(|_| Errno::EFAULT)?;
            continue;
        };
        end(leaf.frame.add((at.0 - leaf.addr.0) >> FRAME_SHIFT))?;
        at = at.add(FRAME_SIZE);
    }
    Ok(())
}

/// Moves what is in a frame elsewhere, and takes the frame out of use.
fn take_offline(frame: Frame) -> Result<(), Errno> {
    manager().soft_offline(frame).map_err(|error| Errno::of(error.errno()))
}
