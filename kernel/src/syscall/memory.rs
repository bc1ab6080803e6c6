//! The calls about memory. Each is one verb of Quire; only flags and errors are translated.

use quire::arch::Protection;
use quire::limits::FRAME_SIZE;
use quire::vm::{Advice, Backing, MapRequest, Placement, Remap};

use super::{Answer, Call};
use crate::errno::Errno;
use crate::memory::manager::manager;

const MAP_SHARED: u64 = 0x01;
const MAP_PRIVATE: u64 = 0x02;
const MAP_FIXED: u64 = 0x10;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_LOCKED: u64 = 0x2000;
const MAP_NORESERVE: u64 = 0x4000;
const MAP_POPULATE: u64 = 0x8000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;

const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_FIXED: u64 = 2;

impl Call<'_> {
    /// `mmap`: anonymous memory, or a private mapping of an open file.
    pub(super) fn mmap(&self) -> Answer {
        let [_, len, prot, flags, descriptor, offset] = self.arguments;
        if flags & MAP_SHARED != 0 || flags & MAP_PRIVATE == 0 || !offset.is_multiple_of(FRAME_SIZE) {
            return Err(Errno::EINVAL);
        }
        let request = MapRequest {
            addr: self.addr(0),
            len,
            prot: Protection::from_bits(prot as u8),
            placement: placement(flags),
            grows_down: flags & MAP_GROWSDOWN != 0,
            populate: flags & MAP_POPULATE != 0,
            locked: flags & MAP_LOCKED != 0,
            noreserve: flags & MAP_NORESERVE != 0,
            ..MapRequest::default()
        };
        if flags & MAP_ANONYMOUS != 0 {
            return Ok(self.space.mmap(&request)?.0);
        }
        // The mapping keeps the file's pages; this handle is needed no longer than the call.
        let file = manager().open(self.process().files.lock().clone().lock().mappable(descriptor)?)?;
        let backing = Backing::File { file: &file, page_offset: offset / FRAME_SIZE };
        Ok(self.space.mmap(&MapRequest { backing, ..request })?.0)
    }

    pub(super) fn munmap(&self) -> Answer {
        self.space.munmap(self.addr(0), self.arguments[1])?;
        Ok(0)
    }

    pub(super) fn mprotect(&self) -> Answer {
        let prot = Protection::from_bits(self.arguments[2] as u8);
        self.space.mprotect(self.addr(0), self.arguments[1], prot)?;
        Ok(0)
    }

    pub(super) fn mremap(&self) -> Answer {
        let [_, old_len, new_len, flags, ..] = self.arguments;
        let to = match flags {
            0 => Remap::InPlace,
            MREMAP_MAYMOVE => Remap::MayMove,
            both if both == MREMAP_MAYMOVE | MREMAP_FIXED => Remap::Fixed(self.addr(4)),
            _ => return Err(Errno::EINVAL),
        };
        Ok(self.space.mremap(self.addr(0), old_len, new_len, to)?.0)
    }

    /// The advices of `madvise(2)` that programs use most.
    pub(super) fn madvise(&self) -> Answer {
        let advice = match self.arguments[2] {
            4 => Advice::DontNeed,
            8 => Advice::Free,
            14 => Advice::HugePage,
            15 => Advice::NoHugePage,
            // `MADV_NORMAL` to `MADV_WILLNEED` change nothing here.
            0..=3 => return Ok(0),
            _ => return Err(Errno::EINVAL),
        };
        self.space.madvise(self.addr(0), self.arguments[1], advice)?;
        Ok(0)
    }

    /// `brk`, which cannot fail: it returns where the heap ends.
    pub(super) fn brk(&self) -> Answer {
        Ok(self.space.brk(self.addr(0)).0)
    }
}

fn placement(flags: u64) -> Placement {
    if flags & MAP_FIXED_NOREPLACE != 0 {
        Placement::FixedNoReplace
    } else if flags & MAP_FIXED != 0 {
        Placement::Fixed
    } else {
        Placement::Hint
    }
}
