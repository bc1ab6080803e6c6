//! Huge pages of files in parts, kept naively: a cell for each 4 KiB of each place, and sums over all cells.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use quire::addr::{Frame, PageSize};
use quire::error::{FaultError, MmError};
use quire::hugetlb::HugeSize;
use quire::vm::Refusal;

/// The state of 4 KiB in a page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Cell {
    #[default]
    Empty,
    /// A marker: the memory went bad, or a handler says that it is lost.
    Lost,
    Mapped(Leaf),
}

/// A leaf, or the part of one in a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leaf {
    pub(super) size: PageSize,
    pub(super) write: bool,
    pub(super) marked: bool,
    pub(super) dirty: bool,
    pub(super) soft: bool,
}

impl Leaf {
    /// A leaf that a fault or an answer installed.
    pub(super) fn new(write: bool, marked: bool) -> Self {
        let write = write && !marked;
        Self { size: PageSize::Size4K, write, marked, dirty: write, soft: write }
    }

    fn rights(self) -> (bool, bool) {
        (self.write, self.marked)
    }
}

impl Cell {
    pub(super) fn leaf(self) -> Option<Leaf> {
        match self {
            Self::Mapped(leaf) => Some(leaf),
            _ => None,
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Leaf)) {
        if let Self::Mapped(leaf) = self {
            change(leaf);
        }
    }
}

#[derive(Clone)]
pub(super) struct Place {
    /// The index of the page in the file.
    pub(super) index: u64,
    pub(super) writable: bool,
    pub(super) split: bool,
    /// No part has been mapped since all of the page was unmapped here.
    pub(super) fresh: bool,
    pub(super) cells: Vec<Cell>,
}

#[derive(Default)]
pub(super) struct Page {
    /// Its first frame, once known.
    pub(super) frame: Option<Frame>,
    pub(super) bad: BTreeSet<usize>,
    /// The word that was stored to each 4 KiB.
    pub(super) words: BTreeMap<usize, u64>,
}

/// A file of pages of one size. Pages that are only reserved are `None`.
#[derive(Default)]
pub(super) struct ModelFile {
    pub(super) size: u64,
    pub(super) pages: BTreeMap<u64, Option<Page>>,
}

/// A place: the index of its page size, and its number among the places of that size.
pub(super) type Slot = (usize, u64);
pub(super) type Places = BTreeMap<Slot, Place>;

/// The whole model: one file of each size.
pub(super) struct Model {
    pub(super) files: [ModelFile; 2],
    /// How many pages each pool has.
    pub(super) pools: [u64; 2],
    pub(super) spaces: Vec<Places>,
}

pub(super) fn cells_of(size: usize) -> usize {
    HugeSize::ALL[size].order().frames() as usize
}

impl Place {
    /// Splits the leaf across the border before a cell.
    fn cut(&mut self, at: usize) {
        let Some(Cell::Mapped(leaf)) = self.cells.get(at).copied() else { return };
        if leaf.size == PageSize::Size1G && at > 0 {
            self.resize(0..self.cells.len(), PageSize::Size2M);
        }
        if leaf.size > PageSize::Size4K && !at.is_multiple_of(512) {
            self.resize(at / 512 * 512..at / 512 * 512 + 512, PageSize::Size4K);
        }
    }

    fn resize(&mut self, range: Range<usize>, size: PageSize) {
        self.cells[range].iter_mut().for_each(|cell| cell.change(|leaf| leaf.size = size));
        self.fresh = false;
    }

    pub(super) fn cut_ends(&mut self, range: &Range<usize>) {
        self.cut(range.start);
        self.cut(range.end);
    }

    /// Unmaps a range, and frees the tables that it covers.
    fn unmap(&mut self, range: Range<usize>) {
        self.fresh |= range == (0..self.cells.len());
        self.cells[range].fill(Cell::Empty);
    }

    /// Another task unmaps all of it through the file, and leaves the tables.
    fn lose_all(&mut self) {
        self.cells.fill(Cell::Empty);
    }

    /// Puts markers into empty cells.
    pub(super) fn lose(&mut self, range: Range<usize>) {
        self.fresh &= range.is_empty();
        self.cells[range].fill(Cell::Lost);
    }

    /// As a child inherits it: its pages are faulted in from the file, save those that are lost.
    pub(super) fn inherited(&self) -> Self {
        let kept = |cell: &Cell| if *cell == Cell::Lost { Cell::Lost } else { Cell::Empty };
        let cells: Vec<Cell> = self.cells.iter().map(kept).collect();
        Self { fresh: !cells.contains(&Cell::Lost), cells, ..*self }
    }

    pub(super) fn each(&mut self, range: Range<usize>, change: impl Fn(&mut Leaf)) {
        self.cells[range].iter_mut().for_each(|cell| cell.change(&change));
    }

    /// The one leaf of a size that could replace these cells, or the first obstacle.
    pub(super) fn as_one(&self, range: Range<usize>, size: PageSize) -> Result<Leaf, Refusal> {
        let mut all: Option<Leaf> = None;
        for cell in &self.cells[range] {
            let leaf = match cell {
                Cell::Empty => return Err(Refusal::Missing),
                Cell::Lost => return Err(Refusal::Lost),
                Cell::Mapped(leaf) => *leaf,
            };
            let sum = all.get_or_insert(Leaf { size, ..leaf });
            if sum.rights() != leaf.rights() {
                return Err(Refusal::Rights);
            }
            (sum.dirty, sum.soft) = (sum.dirty | leaf.dirty, sum.soft | leaf.soft);
        }
        Ok(all.expect("no range is empty"))
    }
}

impl ModelFile {
    pub(super) fn present(&self) -> impl Iterator<Item = &Page> {
        self.pages.values().flatten()
    }

    pub(super) fn page(&mut self, index: u64) -> &mut Page {
        self.pages.get_mut(&index).and_then(Option::as_mut).expect("the file has the page")
    }
}

impl Model {
    pub(super) fn free_and_promised(&self, size: usize) -> (u64, u64) {
        let pages = &self.files[size].pages;
        let present = self.files[size].present().count() as u64;
        (self.pools[size] - present, pages.len() as u64 - present)
    }

    fn spare(&self, size: usize) -> u64 {
        let (free, reserved) = self.free_and_promised(size);
        free - reserved
    }

    /// The parts of a range of cells, which are numbered through all places of a size.
    pub(super) fn parts(size: usize, range: &Range<usize>) -> Vec<(Slot, Range<usize>)> {
        let len = cells_of(size);
        let slots = range.start / len..range.end.div_ceil(len);
        let part = |slot: usize| {
            let first = slot * len;
            ((size, slot as u64), range.start.max(first) - first..range.end.min(first + len) - first)
        };
        slots.map(part).filter(|(_, part)| !part.is_empty()).collect()
    }

    pub(super) fn map(&mut self, task: usize, slots: Range<u64>, of: &Mapping) -> Result<(), MmError> {
        let indices = of.first..of.first + (slots.end - slots.start);
        let missing = indices.clone().filter(|index| !self.files[of.size].pages.contains_key(index)).count();
        if !of.noreserve {
            if missing as u64 > self.spare(of.size) {
                return Err(MmError::NoMemory);
            }
            for index in indices.clone() {
                self.files[of.size].pages.entry(index).or_insert(None);
            }
        }
        if of.writable {
            let file = &mut self.files[of.size];
            file.size = file.size.max(indices.end);
        }
        for (slot, index) in slots.zip(indices) {
            let place = Place {
                index,
                writable: of.writable,
                split: false,
                fresh: true,
                cells: vec![Cell::Empty; cells_of(of.size)],
            };
            self.spaces[task].insert((of.size, slot), place);
        }
        Ok(())
    }

    /// An access. Returns whether a fault maps the cell.
    pub(super) fn access(
        &mut self,
        task: usize,
        slot: Slot,
        at: usize,
        write: bool,
    ) -> Result<bool, FaultError> {
        let place = self.spaces[task].get_mut(&slot).ok_or(FaultError::NotMapped)?;
        if write && !place.writable {
            return Err(FaultError::Protection);
        }
        match place.cells[at] {
            Cell::Lost => Err(FaultError::Poisoned),
            Cell::Mapped(leaf) if write && leaf.marked => Err(FaultError::Marked),
            Cell::Mapped(leaf) => {
                if write && !leaf.write {
                    let frames = leaf.size.frames() as usize;
                    let first = at / frames * frames;
                    place.each(first..first + frames, |leaf| {
                        (leaf.write, leaf.dirty, leaf.soft) = (true, true, true);
                    });
                }
                Ok(false)
            }
            Cell::Empty => {
                let (index, split) = (place.index, place.split);
                self.bring(slot.0, index)?;
                let bad = &self.files[slot.0].page(index).bad;
                let lost = if split { bad.contains(&at) } else { !bad.is_empty() };
                if lost { Err(FaultError::Poisoned) } else { Ok(true) }
            }
        }
    }

    /// Allocates the file's page, if it is missing.
    pub(super) fn bring(&mut self, size: usize, index: u64) -> Result<(), FaultError> {
        if index >= self.files[size].size {
            return Err(FaultError::BeyondEnd);
        }
        let spare = self.spare(size);
        let pages = &mut self.files[size].pages;
        match pages.get(&index) {
            Some(Some(_)) => return Ok(()),
            None if spare == 0 => return Err(FaultError::NoHugePage),
            _ => {}
        }
        pages.insert(index, Some(Page::default()));
        Ok(())
    }

    pub(super) fn dont_need(
        &mut self,
        task: usize,
        size: usize,
        mut range: Range<usize>,
    ) -> Result<(), MmError> {
        let len = cells_of(size);
        let places = &mut self.spaces[task];
        let whole = |at: usize| {
            let place = places.get(&(size, (at / len) as u64));
            !at.is_multiple_of(len) && place.is_some_and(|place| !place.split)
        };
        let holes = Self::parts(size, &range).iter().any(|(slot, _)| !places.contains_key(slot));
        if whole(range.start) {
            return Err(MmError::Invalid);
        }
        if whole(range.end) {
            range.end = (range.end / len * len).max(range.start);
        }
        for (slot, part) in Self::parts(size, &range) {
            if let Some(place) = places.get_mut(&slot) {
                place.cut_ends(&part);
                place.unmap(part);
            }
        }
        if holes { Err(MmError::NoMemory) } else { Ok(()) }
    }

    /// Drops pages and reservations of the file, and all their mappings.
    pub(super) fn drop_pages(&mut self, size: usize, indices: Range<u64>) {
        let file = &mut self.files[size];
        let bad = |page: &Option<Page>| page.as_ref().is_some_and(|page| !page.bad.is_empty());
        let gone = file.pages.iter().filter(|(index, page)| indices.contains(index) && bad(page)).count();
        // Pages with bad memory leave their pool.
        self.pools[size] -= gone as u64;
        file.pages.retain(|index, _| !indices.contains(index));
        for (slot, place) in self.spaces.iter_mut().flatten() {
            if slot.0 == size && indices.contains(&place.index) {
                place.lose_all();
            }
        }
    }

    /// A frame of a page goes bad.
    pub(super) fn lose(&mut self, size: usize, index: u64, at: usize) {
        self.files[size].page(index).bad.insert(at);
        for (slot, place) in self.spaces.iter_mut().flatten() {
            if slot.0 != size || place.index != index || place.cells.iter().all(|cell| cell.leaf().is_none())
            {
                continue;
            }
            if !place.split {
                place.lose_all();
                continue;
            }
            place.cut_ends(&(at..at + 1));
            if place.cells[at].leaf().is_some() {
                place.cells[at] = Cell::Lost;
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) size: usize,
    pub(super) first: u64,
    pub(super) writable: bool,
    pub(super) noreserve: bool,
}
