//! Walkers by frame number: callers that ask the window about frames that they do not own.
//!
//! A walker has a frame number and reads through the window, whatever other tasks change there meanwhile. It
//! reads inside a section of [`Window::walkers`](super::Window::walkers). Each section sees the page as it
//! was, as it will be, or not at all; no read faults.
//!
//! # Fake heads
//!
//! In an optimised page the first frame of the descriptors backs all of the page's addresses in the window,
//! so the head's descriptor shows at the start of each 4 KiB. A walker that finds a head there reads the next
//! descriptor, which is the first tail's in every such frame: if it is a tail, it names the head. (As Linux
//! from 2021 to 2026. With `mask-tail` no copy of a head is anywhere, and the next descriptor confirms it.)
//!
//! # References
//!
//! [`try_get`] adds a reference to a huge page unless it has none, as a page has while no task uses it. It
//! stores to heads alone: it first checks that the descriptor is a head and that the count is above zero.
//! Both hold until the section is left, since a task that makes the head's address read-only lets a grace
//! period pass after it took the count to zero. A reference ends with [`put`] in the section in which it
//! began: the page's owner waits for it to give the page back.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use super::Window;
use super::descriptor::{COMPOUND, COUNT, FLAGS, Head, head_named, is_first, word_addr};
use crate::addr::{Frame, Order, VirtAddr};
use crate::limits::FRAME_SIZE;
use crate::page_alloc::PageAllocator;
use crate::platform::TablePlatform;
use crate::tlb::words::words;

/// A walker's access to the words of the window: in a kernel, loads and stores of its virtual addresses.
pub trait WindowAccess {
    /// Reads the aligned word at `addr`, with acquire ordering.
    fn load(&self, addr: VirtAddr) -> u64;

    /// Replaces `old` by `new` in one atomic step.
    ///
    /// # Errors
    /// The word that is there instead.
    fn exchange(&self, addr: VirtAddr, old: u64, new: u64) -> Result<u64, u64>;
}

/// The first frame of the huge page that a frame belongs to, if it belongs to one. In a section.
pub fn head_of(window: &impl WindowAccess, frame: Frame) -> Option<Frame> {
    if let Some(head) = head_named(window.load(word_addr(frame, COMPOUND)), frame) {
        return Some(head);
    }
    Head::of(window.load(word_addr(frame, FLAGS)))?;
    if !is_first(frame) {
        return Some(frame);
    }
    // A head or a copy of one: the next descriptor tells.
    head_named(window.load(word_addr(frame.add(1), COMPOUND)), frame.add(1))
}

/// The head of the huge page that starts at a frame. In a section.
pub fn head_at(window: &impl WindowAccess, frame: Frame) -> Option<Head> {
    Head::of(window.load(word_addr(frame, FLAGS))).filter(|_| head_of(window, frame) == Some(frame))
}

/// The number of references of the huge page with this first frame. In a section.
pub fn references(window: &impl WindowAccess, head: Frame) -> u64 {
    window.load(word_addr(head, COUNT))
}

/// Adds a reference to the huge page that starts at a frame, unless there is none or no task uses it; returns
/// whether it did. In a section, which is not left before [`put`]. Never stores to a tail's descriptor.
pub fn try_get(window: &impl WindowAccess, frame: Frame) -> bool {
    if head_of(window, frame) != Some(frame) {
        return false;
    }
    let at = word_addr(frame, COUNT);
    let mut count = window.load(at);
    while count != 0 {
        match window.exchange(at, count, count + 1) {
            Ok(_) => return true,
            Err(now) => count = now,
        }
    }
    false
}

/// Takes back what [`try_get`] added.
pub fn put(window: &impl WindowAccess, frame: Frame) {
    let at = word_addr(frame, COUNT);
    let mut count = window.load(at);
    while let Err(now) = window.exchange(at, count, count - 1) {
        count = now;
    }
}

/// The window as its owner reads it, by the direct map: for checks at rest.
struct ByTables<'a, P: TablePlatform> {
    window: &'a Window,
    platform: &'a P,
}

impl<P: TablePlatform> WindowAccess for ByTables<'_, P> {
    fn load(&self, addr: VirtAddr) -> u64 {
        let frame = self.window.frame_behind(self.platform, addr.align_down(FRAME_SIZE));
        let word = (addr.0 % FRAME_SIZE) as usize / size_of::<u64>();
        words(self.platform, frame)[word].load(Ordering::Acquire)
    }

    fn exchange(&self, addr: VirtAddr, _old: u64, _new: u64) -> Result<u64, u64> {
        Err(self.load(addr))
    }
}

impl Window {
    /// Whether all descriptors of a free page of a pool lead to its head, and that describes the page. At
    /// rest.
    pub fn describes<P: TablePlatform>(
        &self,
        pages: &PageAllocator<'_, P>,
        page: Frame,
        order: Order,
    ) -> bool {
        let access = ByTables { window: self, platform: pages.platform() };
        let expected = Self::head_for(pages, page, order);
        let head = head_at(&access, page).is_some_and(|head| Head { optimised: false, ..head } == expected);
        let led = (0..order.frames()).all(|at| head_of(&access, page.add(at)) == Some(page));
        head && led && references(&access, page) == 0
    }
}
