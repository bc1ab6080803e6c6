//! Chooses the address of a new mapping.
//!
//! The rules are those of Linux on x86-64 (`mmap(2)`; mappings are placed top down from below the stack). A
//! hint is taken if the place is free. Everything else goes to the highest gap, and anonymous memory whose
//! length is a multiple of 2 MiB to an address that large folios can use.
#![cfg_attr(not(test), forbid(unsafe_code))]

use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::PagingMode;
use crate::error::MmError;
use crate::limits::FRAME_SIZE;
use crate::vm::tree::VmaTree;

/// What the address of a request means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// A wish: there if the place is free, else elsewhere. Address 0 is no wish.
    #[default]
    Hint,
    /// As [`Self::Hint`], from 1 GiB to 2 GiB (`MAP_32BIT`).
    Low,
    /// There, replacing what is mapped there (`MAP_FIXED`).
    Fixed,
    /// There, or an error if something is mapped there (`MAP_FIXED_NOREPLACE`).
    FixedNoReplace,
}

/// What a mapping needs of its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fit {
    /// Nothing.
    #[default]
    Page,
    /// Preferably one that 2 MiB folios can use.
    Large,
    /// A multiple of so many bytes, as the length is.
    Must(u64),
}

impl Fit {
    /// [`Self::Large`], or nothing.
    pub const fn large_if(large: bool) -> Self {
        if large { Self::Large } else { Self::Page }
    }

    /// What the address must be a multiple of.
    const fn unit(self) -> u64 {
        match self {
            Self::Must(bytes) => bytes,
            Self::Page | Self::Large => FRAME_SIZE,
        }
    }
}

/// The bounds between which mappings are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// All user addresses.
    pub user: VirtRange,
    /// The top of the area that is filled from above.
    pub mmap_base: VirtAddr,
    /// The lowest address that may be mapped, as Linux's `vm.mmap_min_addr`.
    pub lowest: VirtAddr,
}

/// Higher addresses are used only when a hint asks for them: programs keep marks in the upper bits of 48.
const DEFAULT_WINDOW: PagingMode = PagingMode::FourLevel;
/// Where mappings go whose addresses must fit 31 bits.
const LOW_WINDOW: VirtRange = VirtRange { start: VirtAddr(1 << 30), end: VirtAddr(2 << 30) };
/// Room for the stack above the mapping area; Linux leaves at least as much.
const STACK_ROOM: u64 = 128 << 20;
const LOWEST: u64 = 64 << 10;

impl Layout {
    /// The layout of a new address space.
    pub const fn new(mode: PagingMode) -> Self {
        let top = DEFAULT_WINDOW.user_range().end.0;
        Self { user: mode.user_range(), mmap_base: VirtAddr(top - STACK_ROOM), lowest: VirtAddr(LOWEST) }
    }

    /// Rounds a length from a caller up to pages of `unit` bytes.
    ///
    /// # Errors
    /// [`MmError::Invalid`] for zero, [`MmError::NoMemory`] for more than any address space holds.
    pub const fn length(&self, len: u64, unit: u64) -> Result<u64, MmError> {
        if len == 0 {
            return Err(MmError::Invalid);
        }
        match VirtAddr(len).align_up(unit) {
            Some(len) if len.0 <= self.user.len() => Ok(len.0),
            _ => Err(MmError::NoMemory),
        }
    }

    /// The range that a caller names in a verb on existing mappings, with `len` rounded up to pages. `None`
    /// when `addr` is unaligned or the range leaves the user half.
    pub fn range(&self, addr: VirtAddr, len: u64) -> Option<VirtRange> {
        let len = VirtAddr(len).align_up(FRAME_SIZE)?.0;
        let end = addr.0.checked_add(len)?;
        (addr.is_aligned(FRAME_SIZE) && end <= self.user.end.0).then(|| VirtRange::from_len(addr, len))
    }

    /// Finds the place of `len` bytes (from [`Self::length`]).
    ///
    /// # Errors
    /// [`MmError::NoMemory`] when there is no room or a fixed range leaves the user half,
    /// [`MmError::Invalid`] for an unaligned fixed address, [`MmError::NotPermitted`] for one below the
    /// lowest, [`MmError::Exists`] for [`Placement::FixedNoReplace`] when something is mapped there.
    pub fn place(
        &self,
        tree: &VmaTree,
        addr: VirtAddr,
        len: u64,
        placement: Placement,
        fit: Fit,
    ) -> Result<VirtRange, MmError> {
        match placement {
            Placement::Hint => return self.place_by_hint(tree, addr, len, fit).ok_or(MmError::NoMemory),
            Placement::Low => return place_low(tree, addr, len, fit).ok_or(MmError::NoMemory),
            Placement::Fixed | Placement::FixedNoReplace => {}
        }
        if len > self.user.len() || addr.0 > self.user.end.0 - len {
            return Err(MmError::NoMemory);
        }
        if !addr.is_aligned(fit.unit()) {
            return Err(MmError::Invalid);
        }
        if addr < self.lowest {
            return Err(MmError::NotPermitted);
        }
        let range = VirtRange::from_len(addr, len);
        if placement == Placement::FixedNoReplace && tree.first_in(range).is_some() {
            return Err(MmError::Exists);
        }
        Ok(range)
    }

    fn place_by_hint(&self, tree: &VmaTree, hint: VirtAddr, len: u64, fit: Fit) -> Option<VirtRange> {
        let mut hint = match fit {
            Fit::Must(bytes) => hint.align_up(bytes)?,
            Fit::Page | Fit::Large => hint.align_down(FRAME_SIZE),
        };
        if hint.0 != 0 {
            hint = hint.max(self.lowest.align_up(fit.unit())?);
            if let Some(range) = free_at(tree, hint, len, self.window(hint).end) {
                return Some(range);
            }
        }
        let window = self.window(hint);
        let below_base = VirtRange::new(window.start, VirtAddr(self.mmap_base.0 + self.beyond_default(hint)));
        let large = fit == Fit::Large && hint.0 == 0 && len.is_multiple_of(PageSize::Size2M.bytes());
        let aligned = large.then(|| tree.highest_gap(below_base, len, PageSize::Size2M.bytes())).flatten();
        aligned
            .or_else(|| tree.highest_gap(below_base, len, fit.unit()))
            .or_else(|| tree.highest_gap(window, len, fit.unit()))
            .map(|start| VirtRange::from_len(start, len))
    }

    /// Where a request with this hint may go: beyond the default window only if the hint is.
    fn window(&self, hint: VirtAddr) -> VirtRange {
        let end = self.user.end.0.min(DEFAULT_WINDOW.user_range().end.0 + self.beyond_default(hint));
        VirtRange::new(self.lowest, VirtAddr(end))
    }

    fn beyond_default(&self, hint: VirtAddr) -> u64 {
        let default_end = DEFAULT_WINDOW.user_range().end;
        if hint > default_end { self.user.end.0.saturating_sub(default_end.0) } else { 0 }
    }
}

fn place_low(tree: &VmaTree, hint: VirtAddr, len: u64, fit: Fit) -> Option<VirtRange> {
    let hint = hint.align_up(fit.unit())?;
    let wished = if hint.0 == 0 { None } else { free_at(tree, hint, len, LOW_WINDOW.end) };
    let found = || tree.highest_gap(LOW_WINDOW, len, fit.unit());
    wished.or_else(|| found().map(|start| VirtRange::from_len(start, len)))
}

/// The range at `start`, if it is free and ends at `end` at the latest.
fn free_at(tree: &VmaTree, start: VirtAddr, len: u64, end: VirtAddr) -> Option<VirtRange> {
    let stop = start.0.checked_add(len).filter(|&stop| stop <= end.0)?;
    let free = tree.find_from(start).is_none_or(|next| stop <= next.guarded_start().0);
    free.then(|| VirtRange::from_len(start, len))
}

#[cfg(test)]
mod tests;
