//! The control registers that decide how hardware reads page tables (Intel SDM volume 3A, sections 2.5 and
//! 4.1; AMD64 APM volume 2, sections 3.1 and 5.1).

use super::PagingMode;
use crate::error::{ProcessorError, Requirement};

const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;
const EFER: u32 = 0xc000_0080;

/// What the library relies on, in the order of the bits in [`ProcessorState::missing`].
const REQUIREMENTS: [Requirement; 7] = [
    Requirement { name: "CR0.PG set", otherwise: "no address is translated" },
    Requirement {
        name: "CR0.WP set",
        otherwise: "a store of the kernel through a read-only leaf changes shared memory, the zero page too",
    },
    Requirement { name: "CR4.PAE set", otherwise: "entries have 32 bits" },
    Requirement { name: "EFER.LMA set", otherwise: "the processor is not in 64-bit mode" },
    Requirement {
        name: "EFER.NXE set",
        otherwise: "the first access to memory that is not executable faults with a reserved bit",
    },
    Requirement {
        name: "CR4.LA57 clear",
        otherwise: "the processor walks five levels: set it so or choose `PagingMode::FiveLevel`",
    },
    Requirement {
        name: "CR4.LA57 set",
        otherwise: "the processor walks four levels: set it so or choose `PagingMode::FourLevel`",
    },
];

/// The state of a processor by which it interprets page tables: CR0, CR4 and EFER.
///
/// | bit | value | without it |
/// |---|---|---|
/// | `CR0.PG`, `CR4.PAE`, `EFER.LMA` | set | the processor is not in 64-bit mode |
/// | `CR0.WP` | set | a store of the kernel through a read-only leaf changes shared memory, the zero page too |
/// | `EFER.NXE` | set | the first access to memory that is not executable faults with a reserved bit |
/// | `CR4.LA57` | as [`PagingMode`] says | the processor walks another number of levels |
///
/// [`Self::check`] checks these. Four more conditions are not in these registers:
///
/// - Entry 0 of the PAT is write-back, as after reset, since the library sets no cache bits.
/// - A kernel creates no folios and pools of 1 GiB where the processor lacks leaves of that size (CPUID
///   8000\_0001, EDX bit 26).
/// - Shadow stacks of user mode (`IA32_U_CET.SH_STK_EN`) are off, because hardware takes a leaf that is dirty
///   and read-only for a part of a shadow stack, and the library makes such leaves.
/// - `CR4.PGE` is recommended: global translations of the kernel then survive a load of a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorState {
    cr0: u64,
    cr4: u64,
    efer: u64,
}

impl ProcessorState {
    /// The state in which the registers have these values.
    pub const fn from_registers(cr0: u64, cr4: u64, efer: u64) -> Self {
        Self { cr0, cr4, efer }
    }

    /// The state of a modelled processor: everything that the library relies on, with paging of this mode.
    pub const fn modelled(mode: PagingMode) -> Self {
        let la57 = match mode {
            PagingMode::FourLevel => 0,
            PagingMode::FiveLevel => CR4_LA57,
        };
        Self::from_registers(CR0_PG | CR0_WP, CR4_PAE | la57, EFER_LMA | EFER_NXE)
    }

    /// Reads the registers of the running CPU.
    ///
    /// # Safety
    /// The code runs at privilege level 0. Elsewhere the instructions raise a general-protection fault.
    pub unsafe fn read() -> Self {
        let (cr0, cr4): (u64, u64);
        let (low, high): (u32, u32);
        // SAFETY: K2: by this function's contract the privileged instructions may be used; they only read
        // registers, and every processor in 64-bit mode has EFER.
        unsafe {
            core::arch::asm!("mov {}, cr0", out(reg) cr0, options(nomem, nostack, preserves_flags));
            core::arch::asm!("mov {}, cr4", out(reg) cr4, options(nomem, nostack, preserves_flags));
            core::arch::asm!("rdmsr", in("ecx") EFER, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
        }
        Self::from_registers(cr0, cr4, u64::from(high) << 32 | u64::from(low))
    }

    /// Whether the processor can run address spaces of this mode.
    ///
    /// # Errors
    /// [`ProcessorError`] names every bit that has the wrong value.
    pub const fn check(self, mode: PagingMode) -> Result<(), ProcessorError> {
        ProcessorError::unless_none(&REQUIREMENTS, self.missing(mode))
    }

    /// Bit `i` is set if the state lacks the `i`-th of [`REQUIREMENTS`].
    const fn missing(self, mode: PagingMode) -> u32 {
        let five = self.cr4 & CR4_LA57 != 0;
        let wants_five = matches!(mode, PagingMode::FiveLevel);
        (self.cr0 & CR0_PG == 0) as u32
            | ((self.cr0 & CR0_WP == 0) as u32) << 1
            | ((self.cr4 & CR4_PAE == 0) as u32) << 2
            | ((self.efer & EFER_LMA == 0) as u32) << 3
            | ((self.efer & EFER_NXE == 0) as u32) << 4
            | ((five && !wants_five) as u32) << 5
            | ((!five && wants_five) as u32) << 6
    }
}

#[cfg(test)]
mod tests;
