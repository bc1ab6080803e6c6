//! Kernel stacks: each has unmapped pages below it, so that one that overflows faults.
//!
//! Stacks that are free stay mapped, for the next tasks. When there are many, a new task's creation unmaps half of
//! them with one flush: only there the caller may wait for other CPUs.

use core::sync::atomic::{AtomicUsize, Ordering};

use quire::addr::{Frame, Order, PhysAddr, VirtAddr, VirtRange};
use quire::page_alloc::Gfp;

use super::kernel_map::{self, Rights, SIZE_4K};
use super::{layout, manager};
use crate::cpu::ipi;
use crate::errno::Errno;
use crate::sync::IrqLock;

/// Enough for the deepest verb of Quire without optimisation, and an interrupt on top of it.
pub const STACK_BYTES: u64 = 32 << 10;
const PAGES: usize = (STACK_BYTES / SIZE_4K) as usize;
/// The lower half of a slot is not mapped.
const SLOT_BYTES: u64 = 2 * STACK_BYTES;
/// More tasks do not fit into the memory of any machine that the kernel runs on.
const SLOTS: usize = 1 << 16;
/// Free stacks that stay mapped.
const KEPT: usize = 64;

/// A stack's place. A free one is linked by a word at its lowest byte.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(usize);

impl Slot {
    fn start(self) -> u64 {
        layout::STACKS.start + self.0 as u64 * SLOT_BYTES + STACK_BYTES
    }

    fn range(self) -> VirtRange {
        VirtRange::new(VirtAddr(self.start()), VirtAddr(self.start() + STACK_BYTES))
    }

    fn link(self) -> *mut Option<Slot> {
        core::ptr::with_exposed_provenance_mut(self.start() as usize)
    }
}

/// The free stacks: mapped ones, linked, and how many slots were ever used.
struct Free {
    first: Option<Slot>,
    count: usize,
}

static FREE: IrqLock<Free> = IrqLock::new(Free { first: None, count: 0 });
/// Slots without a mapping below the highest one in use, one bit each.
static UNMAPPED: IrqLock<[u64; SLOTS / 64]> = IrqLock::new([u64::MAX; SLOTS / 64]);
/// Stacks that are mapped, in use or not.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The stack of one task in the kernel.
pub struct KernelStack(Slot);

impl KernelStack {
    /// Takes a free stack, or makes one. May wait for other CPUs.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new() -> Result<Self, Errno> {
        if FREE.lock().count > KEPT {
            trim(KEPT / 2);
        }
        pop().map_or_else(map_new, Ok).map(Self)
    }

    /// Its end, from which it grows down.
    pub fn end(&self) -> *mut u64 {
        core::ptr::with_exposed_provenance_mut((self.0.start() + STACK_BYTES) as usize)
    }
}

/// Bytes of the running stack below the caller; unknown on the processor's stacks for fatal traps.
pub fn bytes_left() -> Option<usize> {
    let here = 0_u8;
    let at = (&raw const here).addr() as u64;
    let first = layout::stack();
    let left = if first.contains(&at) {
        at - first.start
    } else if layout::STACKS.contains(&at) {
        ((at - layout::STACKS.start) % SLOT_BYTES).checked_sub(STACK_BYTES)?
    } else {
        return None;
    };
    Some(left as usize)
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        push(self.0);
    }
}

fn push(slot: Slot) {
    let mut free = FREE.lock();
    // SAFETY: X5: the stack is mapped, and the task that ran on it is gone.
    unsafe { slot.link().write(free.first) };
    free.first = Some(slot);
    free.count += 1;
}

fn pop() -> Option<Slot> {
    let mut free = FREE.lock();
    let slot = free.first?;
    // SAFETY: X5: a free stack is mapped and begins with its link.
    free.first = unsafe { slot.link().read() };
    free.count -= 1;
    Some(slot)
}

/// Maps a stack at the lowest slot without one.
fn map_new() -> Result<Slot, Errno> {
    let slot = take_slot().ok_or(Errno::ENOMEM)?;
    for page in 0..PAGES {
        if let Err(errno) = map_page(slot, page) {
            unmap_pages(slot, page);
            give_slot(slot);
            return Err(errno);
        }
    }
    MAPPED.fetch_add(1, Ordering::Relaxed);
    Ok(slot)
}

fn map_page(slot: Slot, page: usize) -> Result<(), Errno> {
    let folio = manager::manager().pages().alloc(Gfp::KERNEL, Order::FRAME).map_err(|_| Errno::ENOMEM)?;
    let frame = folio.into_raw();
    let virt = slot.start() + page as u64 * SIZE_4K;
    kernel_map::with(|tables| tables.map(virt, frame.addr(), SIZE_4K, Rights::Data)).map_err(|_| {
        free_frame(frame);
        Errno::ENOMEM
    })
}

/// Unmaps the first pages of a slot and frees their frames. A CPU may have translations of pages that nothing has used:
/// it reads entries ahead of its instructions.
fn unmap_pages(slot: Slot, pages: usize) {
    let mut frames = [PhysAddr(0); PAGES];
    for (page, frame) in frames.iter_mut().enumerate().take(pages) {
        let virt = slot.start() + page as u64 * SIZE_4K;
        *frame = kernel_map::with(|tables| tables.unmap(virt)).expect("mapped by `map_new`");
    }
    if pages > 0 {
        ipi::flush_kernel(slot.range());
    }
    frames[..pages].iter().for_each(|frame| free_frame(frame.frame()));
}

fn free_frame(frame: Frame) {
    let pages = manager::manager().pages();
    // SAFETY: invariant 1: `map_page` took the frame from Quire, and no translation leads to it.
    let folio = unsafe { pages.frames().folio_from_raw(frame, Order::FRAME) };
    let freed = pages.free(folio);
    debug_assert!(freed.is_ok(), "a frame of a stack");
}

/// How many stacks there are, in use or kept for later.
pub fn mapped() -> u64 {
    MAPPED.load(Ordering::Relaxed) as u64
}

/// Unmaps free stacks until at most so many are kept. May wait for other CPUs.
pub fn trim(keep: usize) {
    while FREE.lock().count > keep {
        let Some(slot) = pop() else { return };
        unmap_pages(slot, PAGES);
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        give_slot(slot);
    }
}

/// How many of Quire's frames the free stacks keep.
pub fn kept_frames() -> u64 {
    (FREE.lock().count * PAGES) as u64
}

fn take_slot() -> Option<Slot> {
    let mut words = UNMAPPED.lock();
    let (index, word) = words.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
    let bit = word.trailing_zeros() as usize;
    *word &= *word - 1;
    Some(Slot(index * 64 + bit))
}

fn give_slot(slot: Slot) {
    UNMAPPED.lock()[slot.0 / 64] |= 1 << (slot.0 % 64);
}
