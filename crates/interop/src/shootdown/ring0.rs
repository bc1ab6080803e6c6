//! The instructions of a kernel that flush the running CPU's translations.

#![allow(unsafe_code)]

use core::arch::asm;

use quire::addr::{Frame, VirtAddr};

use super::{Cr3, LocalTlb};

/// The running CPU in ring 0; a copy of the value works on every CPU.
#[derive(Clone, Copy, Debug)]
pub struct Ring0(());

impl Ring0 {
    /// The running CPU's own instructions.
    ///
    /// # Safety
    /// All code that uses the value runs in ring 0. `EFER.TCE` is clear on all CPUs, as after a reset. User
    /// memory is mapped by leaves that are not global. If `CR4.PCIDE` is set, the kernel's half is mapped by
    /// global leaves, and no page table of it is ever freed: a flush reaches entries of the loaded identifier
    /// and global ones.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// Makes `root` the page table of this CPU, and removes all translations that are not global. The caller
    /// is pinned.
    ///
    /// # Safety
    /// The table maps the code that runs, its stack, and all that the kernel accesses, as the table before
    /// did. It stays a page table until the CPU has loaded another.
    pub unsafe fn load_root(self, root: Frame) {
        // SAFETY: P2: as the caller promises; no translations of identifier 0 stay.
        unsafe { self.load_context(Cr3::new(root)) };
    }

    /// Makes a root the page table of this CPU, under an identifier and with or without its translations, as
    /// [`ContextIds`](super::ContextIds) says. The caller is pinned.
    ///
    /// # Safety
    /// As for [`Self::load_root`]. If the value has an identifier other than 0, `CR4.PCIDE` is set, and the
    /// value is the last that the machine's only `ContextIds` gave for this CPU.
    pub unsafe fn load_context(self, value: Cr3) {
        // SAFETY: P2: ring 0 by the contract of `new`; the caller promises that the table maps the kernel.
        unsafe { asm!("mov cr3, {}", in(reg) value.bits(), options(nostack, preserves_flags)) };
    }
}

impl LocalTlb for Ring0 {
    #[inline]
    fn invlpg(&self, addr: VirtAddr) {
        // SAFETY: P2: ring 0 by the contract of `new`; it changes no memory, and takes any address.
        unsafe { asm!("invlpg [{}]", in(reg) addr.0, options(nostack, preserves_flags)) };
    }

    /// The caller is pinned. The identifier stays what it is, and loses its translations.
    #[inline]
    fn reload(&self) {
        // SAFETY: P2: ring 0 by the contract of `new`; the root stays what it is.
        unsafe {
            asm!("mov {root}, cr3", "mov cr3, {root}", root = out(reg) _, options(nostack, preserves_flags))
        };
    }
}
