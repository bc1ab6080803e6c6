//! The window: a virtual array of page descriptors, one of 64 bytes for each 4 KiB frame, as Linux's vmemmap.
//!
//! This library needs none: a folio of whole blocks has no descriptors, and a block in small pieces keeps its
//! own ([`crate::memmap`]). The window exists so that the published ways to save descriptors of huge pages
//! can be had and measured ([`DescriptorPolicy`]), and for kernels that have walkers by frame number. It
//! describes only pages of pools of huge pages.
//!
//! # What it is made of
//!
//! The window is page tables of the library's, in the processor's format, in frames of the page allocator. A
//! kernel links its root into the kernel half: two entries of a table of the fourth level ([`Window::root`]).
//! The library writes descriptors by the direct map, in the frames that the tables name, and never uses the
//! window's addresses. *Walkers* ([`walker`]) do, so the library changes entries in the order, and with the
//! flushes, that a kernel owes them.
//!
//! At first leaves of 2 MiB map all of it; each describes 64 huge pages of 2 MiB. To *optimise* a huge page
//! is to let one frame stand for all its descriptors, since all its tails say the same, and to free the
//! others (7 of 8, or 4095 of 4096). To *restore* it is to allocate as many frames, with all descriptors.
//!
//! # What must hold
//!
//! - Only the owner of a page changes its descriptors or their entries: the page is in no pool, and no task
//!   uses it. Its references are zero, and a grace period has passed since, so no walker is about to store to
//!   it; `mask-tail` needs none for pages of 2 MiB (`tails.rs`).
//! - A frame is freed only after a flush that follows the last change of an entry that led to it. Until then
//!   old and new frames say the same, since no code writes to either.
//! - A leaf of 2 MiB becomes a table of the same translations once, and stays one.
//!
//! Source: `mm/hugetlb_vmemmap.c`; Kravetz, "Batch hugetlb vmemmap modification operations", version 8,
//! October 2023; Yu Zhao, "mm/hugetlb_vmemmap: fix race with speculative PFN walkers", 2024.

mod batch;
mod chain;
mod descriptor;
mod remap;
mod tables;
mod tails;
pub mod walker;
mod write;

pub(crate) use chain::PageChain;
pub use descriptor::{Head, descriptor_addr};
use tails::SharedTails;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::addr::Frame;
use crate::error::AllocError;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::sync::Sections;

/// Where the descriptors of a pool's pages are kept, and how they are saved.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DescriptorPolicy {
    /// In the block, only while it is used in small pieces. There is no window.
    #[default]
    InBlock,
    /// All are in the window, always: none is saved.
    Full,
    /// Frames are freed and allocated again page by page, with flushes for each (Linux 5.14 to 6.6).
    PerPage,
    /// As [`Self::PerPage`] for all pages of a request together, with two flushes (Linux from 6.7 on).
    Batched,
    /// As [`Self::Batched`], with one frame of tails for all pages of an order in a zone: pages of 2 MiB need
    /// no grace period, and each keeps its head's frame to itself (proposed for Linux in 2026).
    MaskTail,
}

impl DescriptorPolicy {
    /// Every policy.
    pub const ALL: [Self; 5] = [Self::InBlock, Self::Full, Self::PerPage, Self::Batched, Self::MaskTail];

    /// Its name in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InBlock => "in-block",
            Self::Full => "full",
            Self::PerPage => "per-page",
            Self::Batched => "batched",
            Self::MaskTail => "mask-tail",
        }
    }
}

/// The window of a machine.
pub struct Window {
    policy: DescriptorPolicy,
    root: Frame,
    /// Whether pages that join a pool are optimised.
    saving: AtomicBool,
    walkers: Sections,
    /// Frames that many pages share; only with `mask-tail`.
    tails: SharedTails,
    /// The window's frames, tables among them.
    frames: AtomicU64,
    /// The most frames that one batch kept until a flush.
    peak: AtomicU64,
}

impl Window {
    /// Maps the window for all memory; `None` where the policy needs none.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: it takes 1/64 of the memory, with that which may be added later. It frees
    /// nothing then: such a machine can only start again without a window.
    pub fn new<P: TablePlatform>(
        pages: &PageAllocator<'_, P>,
        policy: DescriptorPolicy,
    ) -> Result<Option<Self>, AllocError> {
        if policy == DescriptorPolicy::InBlock {
            return Ok(None);
        }
        let mut window = Self {
            policy,
            root: Frame(0),
            saving: AtomicBool::new(policy != DescriptorPolicy::Full),
            walkers: Sections::new(),
            tails: SharedTails::new(),
            frames: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        };
        window.root = window.new_table(pages)?;
        window.map_all(pages)?;
        Ok(Some(window))
    }

    /// Its policy.
    pub fn policy(&self) -> DescriptorPolicy {
        self.policy
    }

    /// The table of the fourth level of the window. A kernel copies its entries for
    /// `WINDOW_BASE` and for the 512 GiB behind it, which never change; with five
    /// levels a kernel links the table as a whole. Either way before it creates an address space
    /// ([`TablePlatform::kernel_root`]).
    pub fn root(&self) -> Frame {
        self.root
    }

    /// The sections of walkers ([`walker`]).
    pub fn walkers(&self) -> &Sections {
        &self.walkers
    }

    /// The window's frames, tables among them. They count as used.
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// The most frames that one batch kept until a flush, since [`Self::reset_peak`].
    pub fn peak_held(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Resets [`Self::peak_held`].
    pub fn reset_peak(&self) {
        self.peak.store(0, Ordering::Relaxed);
    }

    /// Whether pages that join a pool are optimised.
    pub fn is_saving(&self) -> bool {
        self.saving.load(Ordering::Relaxed)
    }

    /// Chooses whether pages that join a pool from now on are optimised; those in it stay as they are.
    /// Returns whether the policy allows the choice.
    pub fn set_saving(&self, saving: bool) -> bool {
        let free = self.policy != DescriptorPolicy::Full;
        if free {
            self.saving.store(saving, Ordering::Relaxed);
        }
        free
    }
}
