//! `mremap`

use linux_raw_sys::general as abi;
use quire::limits::FRAME_SIZE;
use quire::vm::Remap;
use quire::vm::vma::VmaFlags;
use quire_interop::proc::is_charged;

use crate::errno::Errno;
use crate::ipc;
use crate::observe::commit_allows;
use crate::syscall::{Answer, Call};

const MAY_MOVE: u32 = abi::MREMAP_MAYMOVE;
const FIXED: u32 = abi::MREMAP_MAYMOVE | abi::MREMAP_FIXED;
const DONT_UNMAP: u32 = abi::MREMAP_MAYMOVE | abi::MREMAP_DONTUNMAP;
const FIXED_DONT_UNMAP: u32 = FIXED | abi::MREMAP_DONTUNMAP;

impl Call<'_> {
    /// `mremap`
    pub(in crate::syscall) fn mremap(&self) -> Answer {
        let [addr, old_len, new_len, flags, ..] = self.arguments;
        let to = match u32::try_from(flags).map_err(|_| Errno::EINVAL)? {
            0 => Remap::InPlace,
            MAY_MOVE => Remap::MayMove,
            FIXED => Remap::Fixed(self.addr(4)),
            DONT_UNMAP => Remap::DontUnmap(self.addr(4)),
            FIXED_DONT_UNMAP => Remap::FixedDontUnmap(self.addr(4)),
            _ => return Err(Errno::EINVAL),
        };
        if !addr.is_multiple_of(FRAME_SIZE) {
            return Err(Errno::EINVAL);
        }
        let more = new_len.saturating_sub(old_len);
        let vma = self.space.next_vma(self.addr(0)).filter(|vma| vma.range.contains(self.addr(0)));
        if more > 0
            && let Some(vma) = vma
        {
            if vma.flags.contains(VmaFlags::LOCKED) {
                self.check_more_locked(more)?;
            }
            if is_charged(&vma) && !commit_allows(more) {
                return Err(Errno::ENOMEM);
            }
        }
        let at = self.space.mremap(self.addr(0), old_len, new_len, to)?;
        // It may have taken the place of the last attachment of a segment.
        ipc::collect();
        Ok(at.0)
    }
}
