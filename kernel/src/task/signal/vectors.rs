//! The vector registers that a handler finds behind its frame: what XSAVE stores, with marks in its spare bytes by
//! which a program knows that there is more than FXSAVE's part (`struct _fpx_sw_bytes` in `asm/sigcontext.h`).

use quire::addr::VirtAddr;

use crate::cpu::fpu::{self, FpuState, LEGACY_BYTES};
use crate::errno::Errno;
use crate::memory::user::UserMemory;

/// `FP_XSTATE_MAGIC1`, in the spare bytes.
const MAGIC: u32 = 0x4650_5853;
/// `FP_XSTATE_MAGIC2`, behind the image.
const MAGIC_BEHIND: u32 = 0x4650_5845;
/// Where FXSAVE's part has spare bytes.
const MARKS: usize = 464;

const IMAGE_BYTES: usize = size_of::<FpuState>();
/// Bytes behind the frame.
pub const BYTES: u64 = (IMAGE_BYTES + size_of::<u32>()) as u64;

/// Stores the processor's registers at an address.
///
/// # Errors
/// [`Errno::EFAULT`].
pub fn push(memory: UserMemory<'_>, at: VirtAddr, state: &mut FpuState) -> Result<(), Errno> {
    state.save();
    let marks = &mut state.0[MARKS..LEGACY_BYTES];
    marks.fill(0);
    marks[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    marks[4..8].copy_from_slice(&(BYTES as u32).to_le_bytes());
    marks[8..16].copy_from_slice(&fpu::parts_in_use().to_le_bytes());
    marks[16..20].copy_from_slice(&(IMAGE_BYTES as u32).to_le_bytes());
    memory.write(at, &state.0)?;
    memory.write(VirtAddr(at.0 + IMAGE_BYTES as u64), &MAGIC_BEHIND.to_le_bytes())
}

/// Loads the processor's registers from an address: FXSAVE's part alone where a program has removed a mark.
///
/// The image is complete before it becomes the task's: a read may sleep, and the switch to another task stores the
/// registers that the processor has then, the handler's, in the task's image.
///
/// # Errors
/// [`Errno::EFAULT`].
pub fn pop(memory: UserMemory<'_>, at: VirtAddr, state: &mut FpuState) -> Result<(), Errno> {
    let mut image = FpuState::new();
    memory.read(at, &mut image.0[..LEGACY_BYTES])?;
    if has_marks(memory, at, &image)? {
        memory.read(VirtAddr(at.0 + LEGACY_BYTES as u64), &mut image.0[LEGACY_BYTES..])?;
    } else {
        image.only_legacy();
    }
    image.sanitise();
    *state = image;
    state.restore();
    Ok(())
}

fn has_marks(memory: UserMemory<'_>, at: VirtAddr, state: &FpuState) -> Result<bool, Errno> {
    let marks = &state.0[MARKS..];
    if marks[0..4] != MAGIC.to_le_bytes() || marks[16..20] != (IMAGE_BYTES as u32).to_le_bytes() {
        return Ok(false);
    }
    let mut behind = [0; 4];
    memory.read(VirtAddr(at.0.wrapping_add(IMAGE_BYTES as u64)), &mut behind)?;
    Ok(behind == MAGIC_BEHIND.to_le_bytes())
}
