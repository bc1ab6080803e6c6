//! `msync`: writes back what shared mappings of files stored.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::filemap::FileRef;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::file::write_back::WriteBack;
use crate::vm::handle::handle;
use crate::vm::mapping::vma::{Backing, Vma};
use crate::vm::space::address_space::AddressSpace;

handle! { Msync of AddressSpace }

impl<P: Platform> Msync<'_, '_, P> {
    /// See [`Mm::msync`](crate::vm::Mm::msync).
    pub(in crate::vm) fn msync(self, addr: VirtAddr, len: u64) -> Result<(), MmError> {
        let pages = VirtAddr(len).align_up(FRAME_SIZE).ok_or(MmError::NoMemory)?.0;
        let end = addr.0.checked_add(pages).map(VirtAddr).ok_or(MmError::NoMemory)?;
        if !addr.is_aligned(FRAME_SIZE) {
            return Err(MmError::Invalid);
        }
        let (mut at, mut outcome) = (addr, Ok(()));
        while at < end {
            let space = self.space.read(self.memory.platform());
            let Some(vma) = space.tree.first_in(VirtRange::new(at, end)) else {
                return Err(MmError::NoMemory);
            };
            if vma.range.start > at {
                outcome = Err(MmError::NoMemory);
            }
            at = vma.range.end;
            let file = shared_file(vma).map(FileRef::again);
            drop(space);
            if let Some(file) = file {
                let written = WriteBack::of(self.memory).sync(file.node());
                self.memory.close(file);
                written?;
            }
        }
        outcome
    }
}

fn shared_file(vma: &Vma) -> Option<&FileRef> {
    match &vma.attributes.backing {
        Backing::File { file, .. } if !vma.attributes.is_private() => Some(file),
        Backing::File { .. } | Backing::Anonymous => None,
    }
}
