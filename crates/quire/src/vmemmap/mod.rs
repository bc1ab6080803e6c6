//! The window: a virtual array of page descriptors, one of 64 bytes for each 4 KiB frame, as Linux's vmemmap.
//!
//! This library needs none: what is one folio has no descriptors, and what is used in small pieces has them
//! in its own block ([`crate::memmap`]). It is here so that the published ways to save descriptors of huge
//! pages can be had and measured ([`DescriptorPolicy`]), and for kernels that have walkers by frame number.
//! It speaks of the pages of pools of huge pages alone.
//!
//! # What it is made of
//!
//! Page tables of the library's, in the processor's format, in frames of the page allocator. A kernel links
//! the window's root into its kernel half: two entries of a table of the fourth level ([`Window::root`]). The
//! library writes descriptors by the direct map, in the frames that the tables name, and never uses the
//! window's addresses; its users that do are *walkers* ([`walker`]), and for their sake entries are changed
//! in the order, and with the flushes, that a kernel owes them.
//!
//! At first all of it is mapped by leaves of 2 MiB, each of which describes 64 huge pages of 2 MiB. To
//! *optimise* a huge page is to let one frame stand for all of its descriptors, since all tails of a page say
//! the same, and to free the others (7 of 8, or 4095 of 4096). To *restore* it is to bring them back, which
//! takes as many frames.
//!
//! # What must hold
//!
//! - Only its owner changes a page's descriptors or its entries: it is in no pool, and no task uses it.
//!   Its references are zero, and a grace period has passed since: no walker is about to store to it.
//! - A frame is freed only after a flush that follows the last change of an entry that led to it. Until then
//!   old and new frames say the same, since nothing writes either.
//! - A leaf of 2 MiB becomes a table of the same translations once, and stays one.
//!
//! Source: `mm/hugetlb_vmemmap.c`; Kravetz, "Batch hugetlb vmemmap modification operations", version 8,
//! October 2023; Yu Zhao, "mm/hugetlb_vmemmap: fix race with speculative PFN walkers", 2024.

mod batch;
mod chain;
mod descriptor;
mod remap;
mod tables;
pub mod walker;
mod write;

pub use chain::PageChain;
pub use descriptor::{Head, descriptor_addr};

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::addr::Frame;
use crate::error::AllocError;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::sync::Sections;

/// What the descriptors of a pool's pages cost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DescriptorPolicy {
    /// Nothing: they stand in the block, and only while it is used in small pieces. There is no window.
    #[default]
    InBlock,
    /// All of them are in the window, always: the saving is off.
    Full,
    /// The window's frames are freed and brought back page by page, with flushes for each (Linux 5.14 to
    /// 6.6).
    PerPage,
    /// The same for all pages of a request together, with two flushes (Linux from 6.7 on).
    Batched,
}

impl DescriptorPolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::InBlock, Self::Full, Self::PerPage, Self::Batched];

    /// Its name in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InBlock => "in-block",
            Self::Full => "full",
            Self::PerPage => "per-page",
            Self::Batched => "batched",
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
    /// Frames that the window has now, tables among them.
    frames: AtomicU64,
    /// The most frames that one batch held back until a flush.
    peak: AtomicU64,
}

impl Window {
    /// Maps the window for all memory, or makes none where the policy needs none.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: it takes 1/64 of the memory. Nothing is given back then; there is nothing
    /// to do on such a machine but to start again without it.
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
            frames: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        };
        window.root = window.new_table(pages)?;
        window.map_all(pages)?;
        Ok(Some(window))
    }

    /// What it is for.
    pub fn policy(&self) -> DescriptorPolicy {
        self.policy
    }

    /// The table of the fourth level by which the window is reached: its entries for
    /// [`WINDOW_BASE`](crate::arch::WINDOW_BASE) and the 512 GiB behind it are those that a kernel copies.
    /// They never change; with five levels a kernel links the table as a whole.
    pub fn root(&self) -> Frame {
        self.root
    }

    /// The sections of walkers ([`walker`]).
    pub fn walkers(&self) -> &Sections {
        &self.walkers
    }

    /// Frames that the window has now, tables among them. They count as used.
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// The most frames that one batch held back until a flush, since [`Self::reset_peak`].
    pub fn peak_held(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Forgets what was held back before.
    pub fn reset_peak(&self) {
        self.peak.store(0, Ordering::Relaxed);
    }

    /// Whether pages that join a pool are optimised.
    pub fn is_saving(&self) -> bool {
        self.saving.load(Ordering::Relaxed)
    }

    /// Chooses whether pages that join a pool from now on are optimised; those in it stay as they are.
    /// Whether the policy leaves the choice.
    pub fn set_saving(&self, saving: bool) -> bool {
        let free = self.policy != DescriptorPolicy::Full;
        if free {
            self.saving.store(saving, Ordering::Relaxed);
        }
        free
    }
}
