//! The state of the lockstep test: address spaces with their models, CPUs, files.

use hosted::raw::RawPages;
use std::collections::HashMap;

use fastrand::Rng;
use hosted::Hosted;
use quire::addr::{Frame, FrameRange, Order, VirtAddr, VirtRange};
use quire::arch::{EntryFlags, Protection};
use quire::cpu::CpuId;
use quire::tlb::{MmContext, ZapStrategy};

use crate::pgtable::model::{Page, Space, counts, leaves};
use crate::pgtable::support::*;

pub const CPUS: u32 = 3;
pub const SPACES: usize = 3;
/// Both spots cross a boundary of an upper level; pages are numbered through.
pub const SPOTS: [u64; 2] = [GIB - 4 * MIB, 512 * GIB - 4 * MIB];
pub const SPOT_PAGES: u64 = 2048;

pub struct World<'w, 'p> {
    pub machine: &'w Hosted,
    pub allocator: &'w Allocator<'p>,
    pub rng: Rng,
    pub spaces: Vec<(MmContext, Space)>,
    pub runs: [Option<usize>; CPUS as usize],
    /// The first byte of each allocated frame.
    pub bytes: HashMap<u64, u8>,
    /// Whether forks share tables.
    pub share: bool,
    /// Folios of the page cache, held until the end.
    pub files: Vec<FrameRange>,
}

impl<'w, 'p> World<'w, 'p> {
    pub fn tables(&self, space: usize) -> Tables<'_, 'p> {
        page_tables(self.allocator, &self.spaces[space].0)
    }

    pub fn add_space(&mut self) {
        let zap = ZapStrategy::ALL[self.rng.usize(..ZapStrategy::ALL.len())];
        let context = Tables::create(self.allocator, Default::default()).unwrap();
        self.spaces.push((context.with_zap(zap), Space::default()));
    }

    pub fn any_space(&mut self) -> usize {
        self.rng.usize(..self.spaces.len())
    }

    /// `pages` pages in one spot, at a multiple of `align` pages.
    pub fn place(&mut self, pages: u64, align: u64) -> VirtRange {
        let spot = SPOTS[self.rng.usize(..SPOTS.len())];
        let first = self.rng.u64(0..=(SPOT_PAGES - pages) / align) * align;
        range(spot + first * 4096, pages * 4096)
    }

    pub fn any_range(&mut self) -> VirtRange {
        let bits = self.rng.u32(0..=11);
        let pages = self.rng.u64(1..=1 << bits);
        let align = if self.rng.bool() { 1 } else { 512.min(1 << bits) };
        self.place(pages, align)
    }

    pub fn any_page(&mut self, space: usize) -> Option<(VirtAddr, Page)> {
        let from = self.any_range().start.0;
        let pages = &self.spaces[space].1.0;
        pages.range(from..).chain(pages.iter()).next().map(|(&addr, &page)| (VirtAddr(addr), page))
    }

    pub fn any_flags(&mut self) -> EntryFlags {
        let mut flags = EntryFlags::leaf(self.any_protection()) | EntryFlags::ANON;
        if self.rng.bool() {
            flags = flags | EntryFlags::SOFT_DIRTY;
        }
        match self.rng.u8(..3) {
            0 => flags,
            1 => flags | EntryFlags::ACCESSED,
            _ => flags | EntryFlags::ACCESSED | EntryFlags::DIRTY,
        }
    }

    pub fn any_protection(&mut self) -> Protection {
        let choices = [3, 3, 3, 1, 5, 7, 0];
        Protection::from_bits(choices[self.rng.usize(..choices.len())])
    }

    pub fn new_folio(&mut self, order: Order) -> Option<Frame> {
        let frame = folio(self.machine, self.allocator, order)?;
        self.bytes.extend((0..order.frames()).map(|at| (frame.0 + at, 0)));
        Some(frame)
    }

    pub fn note(&mut self, space: usize, addr: VirtAddr, run: FrameRange, flags: EntryFlags) {
        for at in 0..run.count {
            let page = Page::new(run.start.add(at), flags);
            assert_eq!(self.spaces[space].1.0.insert(addr.0 + at * 4096, page), None);
        }
    }

    pub fn leave(&mut self, space: usize) {
        for cpu in 0..CPUS {
            if self.runs[cpu as usize] == Some(space) {
                self.machine.run_on(CpuId(cpu), || self.spaces[space].0.switch_out(self.machine));
                self.runs[cpu as usize] = None;
            }
        }
    }

    pub fn check(&mut self, thorough: bool) {
        let (mut found, mut granted) = (Vec::new(), Vec::new());
        for (context, model) in &mut self.spaces {
            let census = check(self.allocator, context);
            assert_eq!(census.resident.anon + census.resident.file, model.0.len() as i64);
            let leaves = self.machine.leaves(context.root());
            granted.extend(model.compare(&leaves));
            found.extend(leaves);
        }
        if !granted.is_empty() || thorough {
            let mapped = counts(self.spaces.iter().map(|(_, model)| model));
            assert!(granted.iter().all(|frame| mapped[frame] == 1), "a writable page is mapped elsewhere");
            let leaves = leaves(found.iter());
            for (frame, &pages) in &mapped {
                let count = self.allocator.counts().mapcount(Frame(*frame));
                assert_eq!(count, leaves[frame], "frame {frame:#x} (invariant 5)");
                assert!(if self.share { count <= pages } else { count == pages });
            }
        }
    }

    /// Unshares the tables around a range.
    pub fn own(&mut self, space: usize, part: VirtRange) {
        let start = part.start.align_down(2 * MIB);
        let end = part.end.align_up(2 * MIB).unwrap();
        assert_eq!(self.tables(space).unshare(VirtRange::new(start, end)), Ok(()));
    }

    pub fn end(mut self) {
        self.check(true);
        (0..self.spaces.len()).for_each(|space| self.leave(space));
        for (context, _) in self.spaces.drain(..) {
            Tables::destroy(self.allocator, context);
        }
        for run in self.files.drain(..) {
            assert_eq!(self.allocator.release_raw(run), run.count);
        }
    }
}
