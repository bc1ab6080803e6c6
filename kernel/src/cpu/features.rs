//! What the processor can do, and the state that the kernel and Quire require of it.

use core::arch::x86_64::{__cpuid, __cpuid_count};

use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{Efer, EferFlags};

use super::fpu;

/// Whether leaves of 1 GiB exist (CPUID 8000_0001H, EDX bit 26).
pub fn has_1g_pages() -> bool {
    __cpuid(0x8000_0001).edx >> 26 & 1 == 1
}

/// Whether page tables can have five levels (CPUID 7, ECX bit 16).
pub fn can_have_five_levels() -> bool {
    __cpuid_count(7, 0).ecx >> 16 & 1 == 1
}

/// Sets the control registers.
///
/// - Quire requires `EFER.NXE`, because entries of data have the bit that forbids fetches, and `CR0.WP`, because a
///   store of the kernel to a read-only page must fault and not change the shared page of zeroes.
/// - SMEP and SMAP, which the entry has found, let the kernel neither execute nor touch a program's memory by
///   accident; `CR4.PGE` keeps the kernel's translations when the address space changes.
/// - Programs may use SSE and AVX, whose registers [`fpu`] saves.
pub fn enable() {
    // SAFETY: X7: the kernel's tables use the bit that forbids fetches as NXE defines it; the entry set it
    // already.
    unsafe {
        Efer::update(|flags| flags.insert(EferFlags::NO_EXECUTE_ENABLE | EferFlags::SYSTEM_CALL_EXTENSIONS))
    };
    let kernel = Cr0Flags::WRITE_PROTECT | Cr0Flags::MONITOR_COPROCESSOR | Cr0Flags::NUMERIC_ERROR;
    // SAFETY: X7: the kernel maps what it writes writable, and uses no floating point itself.
    unsafe {
        Cr0::update(|flags| {
            flags.insert(kernel);
            flags.remove(Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::TASK_SWITCHED);
        });
    }
    let vectors = Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE | Cr4Flags::OSXSAVE;
    let guards = Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION | Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION;
    // SAFETY: X7, K3: the processor has these, and only `crate::memory::user` touches user memory, between
    // STAC and CLAC.
    unsafe { Cr4::update(|flags| flags.insert(Cr4Flags::PAGE_GLOBAL | vectors | guards)) };
    fpu::enable(__cpuid(1).ecx >> 28 & 1 == 1);
}
