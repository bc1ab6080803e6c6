//! Read-ahead: pages that the device reads before a task asks for them.
//!
//! A task that reads one page behind the other starts a *stream*. Up to four windows of 32 pages then wait for it or
//! are on the way. The task orders a window when less than two are left; the interrupt handler that sees it
//! arrive orders the next ones. So most of this memory is allocated, and what came too late is freed, by the handler.

use alloc::vec::Vec;
use core::ops::Range;

use quire::addr::Order;
use quire::limits::FRAME_SIZE;
use quire::page_alloc::{Folio, Gfp};

use super::queue::{Part, SECTOR, part_of};
use crate::memory::layout::direct_map;
use crate::memory::manager::manager;

const PAGE: usize = FRAME_SIZE as usize;
/// The sectors of a page.
const PAGE_SECTORS: u64 = (PAGE / SECTOR) as u64;
/// The pages of a window.
const PAGES: usize = super::queue::PARTS;
const WINDOWS: usize = 4;

/// How far a window is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The device fills it.
    Loading,
    /// It can be read.
    Ready,
    /// The device fills it, for nothing.
    Dropped,
}

/// Consecutive pages of the disk.
pub struct Window {
    start: u64,
    pages: Vec<Folio>,
    stage: Stage,
}

impl Window {
    /// A window whose memory comes from the page allocator. It is shorter at the end of the disk, or when memory is
    /// short. The caller may be a handler; a task holds no lock that handlers take.
    pub fn allocate(sectors: Range<u64>) -> Option<Self> {
        let wanted = PAGES.min(((sectors.end - sectors.start) / PAGE_SECTORS) as usize);
        let mut pages = Vec::new();
        pages.try_reserve_exact(wanted).ok()?;
        pages.extend((0..wanted).map_while(|_| manager().pages().alloc(Gfp::KERNEL, Order::FRAME).ok()));
        (!pages.is_empty()).then_some(Self { start: sectors.start, pages, stage: Stage::Loading })
    }

    /// Gives the memory back.
    pub fn free(self) {
        for folio in self.pages {
            let freed = manager().pages().free(folio);
            debug_assert!(freed.is_ok(), "a folio that was just handed out");
        }
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    fn sectors(&self) -> Range<u64> {
        self.start..self.start + self.pages.len() as u64 * PAGE_SECTORS
    }

    /// The memory, for a request.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.pages.iter().map(|folio| part_of(folio.frame().addr()))
    }

    /// Copies sectors of the window.
    fn copy(&self, sector: u64, mut bytes: &mut [u8]) {
        let mut at = (sector - self.start) as usize * SECTOR;
        while !bytes.is_empty() {
            let memory = direct_map(self.pages[at / PAGE].frame().addr());
            // SAFETY: the window owns the folio, which the device has filled and uses no more (Q1).
            let memory = unsafe { core::slice::from_raw_parts(memory, PAGE) };
            let (part, rest) = bytes.split_at_mut(bytes.len().min(PAGE - at % PAGE));
            part.copy_from_slice(&memory[at % PAGE..][..part.len()]);
            (at, bytes) = (at + part.len(), rest);
        }
    }
}

/// What read-ahead has of some sectors.
pub enum Look {
    /// They were copied. The window, which has nothing more, is to be freed.
    Hit(Option<Window>),
    /// They will come.
    Loading,
    /// Nothing.
    Miss,
}

/// The windows of a disk.
#[derive(Default)]
pub struct Ahead {
    windows: [Option<Window>; WINDOWS],
    /// Where the last read ended.
    read: u64,
    /// Where the next window of the stream begins.
    next: Option<u64>,
}

impl Ahead {
    /// Reads sectors, if one window has all. A read behind the last one makes a stream.
    pub fn look(&mut self, sector: u64, bytes: &mut [u8]) -> Look {
        let end = sector + (bytes.len() / SECTOR) as u64;
        let is_inside = |window: &&Window| {
            window.stage != Stage::Dropped && window.start <= sector && end <= window.sectors().end
        };
        let Some(window) = self.windows.iter().flatten().find(is_inside) else {
            // Windows of an older stream may be left.
            if sector == self.read && !self.covers(end) {
                self.next = Some(end);
            }
            self.read = end;
            return Look::Miss;
        };
        if window.stage == Stage::Loading {
            return Look::Loading;
        }
        window.copy(sector, bytes);
        self.read = end;
        // Windows before this one were passed over, and this one may be used up.
        let start = window.start;
        let is_spent = |window: &Window| {
            window.stage == Stage::Ready && (window.start < start || window.sectors().end <= end)
        };
        Look::Hit(self.take(is_spent))
    }

    /// Whether a sector is here or on the way.
    fn covers(&self, sector: u64) -> bool {
        self.windows.iter().flatten().any(|window| window.sectors().contains(&sector))
    }

    fn take(&mut self, which: impl Fn(&Window) -> bool) -> Option<Window> {
        self.windows.iter_mut().find(|slot| slot.as_ref().is_some_and(&which))?.take()
    }

    /// Where a window is wanted next. A task orders one only when few are left.
    pub fn wanted(&self, is_task: bool) -> Option<u64> {
        let count = self.windows.iter().flatten().count();
        self.next.filter(|_| count < if is_task { 2 } else { WINDOWS })
    }

    /// A window that no longer belongs to the stream, to be freed.
    pub fn take_stray(&mut self) -> Option<Window> {
        let (read, next) = (self.read, self.next?);
        self.take(|window| {
            window.stage == Stage::Ready && (window.sectors().end <= read || window.start >= next)
        })
    }

    /// The place for a window that is about to be read.
    pub fn place(&self, window: &Window) -> Option<usize> {
        (self.next == Some(window.start)).then(|| self.windows.iter().position(Option::is_none))?
    }

    /// The window is on the way.
    pub fn put(&mut self, place: usize, window: Window) {
        self.next = Some(window.sectors().end);
        self.windows[place] = Some(window);
    }

    /// No more windows are ordered.
    pub fn end_stream(&mut self) {
        self.next = None;
    }

    /// The device has done a window. Returns one that is to be freed.
    pub fn arrived(&mut self, place: usize, went_well: bool) -> Option<Window> {
        let window =
            self.windows[place].as_mut().filter(|window| went_well && window.stage == Stage::Loading);
        match window {
            Some(window) => {
                window.stage = Stage::Ready;
                None
            }
            None => self.windows[place].take(),
        }
    }

    /// Takes out a window that has some of these sectors, which were written; one that is on the way is dropped later.
    pub fn forget(&mut self, sectors: &Range<u64>) -> Option<Window> {
        let overlaps = |window: &Window| window.start < sectors.end && sectors.start < window.sectors().end;
        for window in self.windows.iter_mut().flatten().filter(|window| overlaps(window)) {
            if window.stage == Stage::Loading {
                window.stage = Stage::Dropped;
            }
        }
        self.take(|window| window.stage == Stage::Ready && overlaps(window))
    }

    /// Whether no window is there or on the way.
    pub fn is_empty(&self) -> bool {
        self.windows.iter().all(Option::is_none)
    }
}
