//! What all address spaces of a machine share: frames, files, the memory of records, the folio policy.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::addr::{Frame, Order, VirtAddr, VirtRange};
use crate::arch::Protection;
use crate::error::{AllocError, InitError, MmError};
use crate::filemap::{FileRef, FileTable};
use crate::hugetlb::HugePools;
use crate::limits::FRAME_SIZE;
use crate::page_alloc::{Folio, Gfp, Origin, PageAllocator};
use crate::platform::{Platform, TouchHint};
use crate::rank::Rank;
use crate::slab::Cache;
use crate::stats::Stat;
use crate::sync::{SpinGuard, SpinLock};
use crate::vm::collapse::WhenShort;
use crate::vm::gigantic::forming::Forming;
use crate::vm::mapping::policy::FolioPolicy;
use crate::vm::mapping::vma::{Backing, Vma, VmaAttributes};
use crate::vm::space::body::{BodyBox, MmBody};
use crate::vm::space::family::Families;
use crate::vm::tree::edit::Spares;
use crate::vm::tree::{VmaBox, VmaList, VmaRecord};
use crate::vm::userfault::Contexts;
use crate::vm::verbs::fork::ForkStrategy;

/// Frames that one round of reclaim asks for.
pub(in crate::vm) const RECLAIM_FRAMES: u64 = 512;

/// The machine's memory as address spaces see it.
pub struct Memory<'p, P: Platform> {
    pages: PageAllocator<'p, P>,
    files: FileTable,
    vmas: Cache<VmaRecord>,
    bodies: Cache<MmBody>,
    families: SpinLock<Families>,
    /// The number of the address space that was made last.
    number: AtomicU64,
    policy: AtomicU64,
    zero: Frame,
    fork: ForkStrategy,
    forming: Forming,
    when_short: WhenShort,
    huge: HugePools,
    userfaults: Contexts,
}

impl<'p, P: Platform> Memory<'p, P> {
    /// Over an allocator that holds the machine's frames. Takes one of them for the zero page.
    ///
    /// # Errors
    /// [`InitError::TooSmall`].
    pub fn new(
        pages: PageAllocator<'p, P>,
        policy: FolioPolicy,
        fork: ForkStrategy,
    ) -> Result<Self, InitError> {
        Self::with_huge(pages, policy, fork, HugePools::new())
    }

    /// The same with these pools of huge pages, which are empty.
    ///
    /// # Errors
    /// [`InitError::TooSmall`].
    pub fn with_huge(
        pages: PageAllocator<'p, P>,
        policy: FolioPolicy,
        fork: ForkStrategy,
        huge: HugePools,
    ) -> Result<Self, InitError> {
        let mut zero = pages.alloc(Gfp::KERNEL, Order::FRAME).map_err(|_| InitError::TooSmall)?;
        pages.hold_for_manager(zero.frames());
        pages.clear(&mut zero, TouchHint::Later);
        let policy = AtomicU64::new(policy.to_bits());
        Ok(Self {
            pages,
            files: FileTable::new(),
            vmas: Cache::new(),
            bodies: Cache::new(),
            families: SpinLock::new(Rank::Families, Families::new()),
            number: AtomicU64::new(0),
            policy,
            zero: zero.into_raw(),
            fork,
            forming: Forming::new(),
            when_short: WhenShort::new(),
            huge,
            userfaults: Contexts::new(),
        })
    }

    /// The search for underused folios when memory is short.
    pub(in crate::vm) fn when_short(&self) -> &WhenShort {
        &self.when_short
    }

    /// The gigantic folios that are being cleared.
    #[inline]
    pub(in crate::vm) fn forming(&self) -> &Forming {
        &self.forming
    }

    /// The handlers of faults.
    #[inline]
    pub(in crate::vm) fn userfaults(&self) -> &Contexts {
        &self.userfaults
    }

    /// The machine.
    #[inline]
    pub fn platform(&self) -> &'p P {
        self.pages.platform()
    }

    /// The frames.
    #[inline]
    pub fn pages(&self) -> &PageAllocator<'p, P> {
        &self.pages
    }

    /// The files.
    #[inline]
    pub fn files(&self) -> &FileTable {
        &self.files
    }

    /// The pools of huge pages.
    #[inline]
    pub fn huge(&self) -> &HugePools {
        &self.huge
    }

    /// The frame of zeroes that reads of untouched memory see.
    #[inline]
    pub fn zero_frame(&self) -> Frame {
        self.zero
    }

    /// How `fork` gives the child its leaves.
    #[inline]
    pub fn fork_strategy(&self) -> ForkStrategy {
        self.fork
    }

    /// The folio sizes of anonymous memory.
    #[inline]
    pub fn policy(&self) -> FolioPolicy {
        FolioPolicy::from_bits(self.policy.load(Ordering::Relaxed))
    }

    /// Chooses the folio sizes of anonymous memory from now on.
    pub fn set_policy(&self, policy: FolioPolicy) {
        self.policy.store(policy.to_bits(), Ordering::Relaxed);
    }

    /// Drops page cache that can be had again and that nobody maps. How many frames became free. Whatever locks of address
    /// spaces the caller holds.
    pub fn reclaim(&self) -> u64 {
        let freed = self.files.reclaim(&self.pages, RECLAIM_FRAMES);
        self.pages.count(Stat::PgstealFile, freed);
        freed
    }

    /// Frees a folio that was just allocated and turned out not to be needed.
    pub(in crate::vm) fn give_up(&self, folio: Folio) {
        let freed = self.pages.free(folio);
        debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
    }

    /// The same of one that is still zero.
    pub(in crate::vm) fn give_up_zeroed(&self, folio: Folio) {
        let freed = self.pages.free_zeroed(folio);
        debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
    }

    /// All address spaces by family.
    pub(in crate::vm) fn families(&self) -> SpinGuard<'_, Families, P> {
        self.families.lock(self.platform())
    }

    /// A number for one more address space: larger than all before, and a family's.
    pub(in crate::vm) fn next_number(&self) -> u64 {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        if Origin::kept(number) == Origin::NOBODY { self.next_number() } else { number }
    }

    /// A body at a place where it stays.
    pub(in crate::vm) fn body(
        &self,
        make: impl FnOnce() -> Result<MmBody, MmError>,
    ) -> Result<BodyBox, MmError> {
        let room = self.bodies.alloc(&self.pages)?;
        match make() {
            // SAFETY: fresh memory of the cache for one body, given back by `give_back_body` alone.
            Ok(body) => Ok(unsafe { BodyBox::new(room, body) }),
            Err(error) => {
                // SAFETY: it was just handed out, and holds nothing.
                unsafe { self.bodies.free(&self.pages, room) };
                Err(error)
            }
        }
    }

    /// Takes back the place of an address space that was taken apart.
    ///
    /// # Safety
    /// `body` came from [`Self::body`], and nobody uses it any more.
    pub(in crate::vm) unsafe fn give_back_body(&self, body: NonNull<MmBody>) {
        // SAFETY: the caller's promise; what the body held was taken out or needs no drop.
        unsafe { self.bodies.free(&self.pages, body.cast()) };
    }

    /// A node without meaning, to be overwritten.
    pub(in crate::vm) fn blank(&self) -> Result<VmaBox, AllocError> {
        let memory = match self.vmas.alloc(&self.pages) {
            Err(_) if self.reclaim() > 0 => self.vmas.alloc(&self.pages)?,
            first => first?,
        };
        let nothing = VirtRange::new(VirtAddr(0), VirtAddr(FRAME_SIZE));
        let vma = Vma::new(nothing, VmaAttributes::anonymous(Protection::NONE));
        // SAFETY: fresh memory of the cache for one node, given back by `discard` alone.
        Ok(unsafe { VmaBox::new(memory, vma) })
    }

    /// As many nodes as an edit takes, all or none.
    pub(in crate::vm) fn spares(&self, count: usize) -> Result<Spares, MmError> {
        let mut spares = Spares::new();
        for _ in 0..count {
            match self.blank() {
                Ok(node) => {
                    let back = spares.put(node);
                    debug_assert!(back.is_none(), "more spares than any edit takes");
                }
                Err(error) => {
                    self.discard_spares(spares);
                    return Err(error.into());
                }
            }
        }
        Ok(spares)
    }

    /// Frees a node and gives back its reference to a file. May block in the pager: not under the lock of an address
    /// space taken for writing.
    pub(in crate::vm) fn discard(&self, node: VmaBox) {
        if let Backing::File { file, .. } = &node.attributes.backing {
            file.node().views(self.platform()).hide(node.view());
        }
        let (memory, vma) = node.into_raw();
        // SAFETY: the memory is what `blank` took from this cache, and nobody else knows it any more.
        unsafe { self.vmas.free(&self.pages, memory) };
        if let Backing::File { file, .. } = vma.attributes.backing {
            self.close(file);
        }
    }

    /// As [`Self::discard`], for all of a list.
    pub(in crate::vm) fn discard_list(&self, mut list: VmaList) {
        while let Some(node) = list.pop() {
            self.discard(node);
        }
    }

    /// Frees nodes that an edit did not use.
    pub(in crate::vm) fn discard_spares(&self, mut spares: Spares) {
        while let Some(node) = spares.take() {
            self.discard(node);
        }
    }

    /// Gives a reference to a file back. What could not be written is lost, as with Linux when the last mapping of a
    /// file goes: only `msync` and `fsync` report it.
    pub(in crate::vm) fn close(&self, file: FileRef) {
        if file.node().huge_order().is_some() {
            return self.close_huge(file);
        }
        let _lost = self.files.close(&self.pages, file);
    }
}
