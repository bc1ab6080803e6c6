//! Each verb on both sides: the library's answer is the model's.

use std::ops::Range;

use fastrand::Rng;
use hosted::{FaultCause, Hosted, Nested};
use quire::addr::{PageSize, VirtAddr};
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::hugetlb::{HugeFailure, HugeSize};
use quire::manager::Failed;
use quire::vm::{Access, Advice, CollapseSteps, File, Refusal, Remap, Sharing};

use super::model::{Cell, Leaf, Mapping, Model, Slot, cells_of};
use super::{FIRST, PAGE};
use crate::hugetlb::world::{HUGE, Manager, R, RW, Space, fork, load, of_file, store};

/// The offset in each page at which words are stored.
pub(super) const WORD: u64 = 24;

pub(super) struct RealSpace<'m> {
    pub(super) mm: Space<'m>,
    pub(super) cpu: CpuId,
}

pub(super) struct Both<'w, 'm, 'p> {
    pub(super) machine: &'w Hosted,
    pub(super) manager: &'m Manager<'p>,
    pub(super) model: Model,
    pub(super) spaces: Vec<RealSpace<'m>>,
    pub(super) files: [File<'m, Hosted>; 2],
    /// A guest in the first address space.
    pub(super) nested: Nested<'w>,
}

/// A piece of the addresses: so many pages of 4 KiB of the places of one size.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) task: usize,
    pub(super) size: usize,
    pub(super) cells: Range<usize>,
}

impl Piece {
    fn addr(&self) -> VirtAddr {
        VirtAddr(FIRST[self.size] + self.cells.start as u64 * PAGE)
    }

    fn len(&self) -> u64 {
        self.cells.len() as u64 * PAGE
    }
}

impl<'m> Both<'_, 'm, '_> {
    pub(super) fn addr((size, slot): Slot, at: usize) -> u64 {
        FIRST[size] + slot * HugeSize::ALL[size].bytes() + at as u64 * PAGE
    }

    pub(super) fn on<T>(&self, task: usize, call: impl FnOnce(&Space<'m>) -> T) -> T {
        let space = &self.spaces[task];
        self.machine.run_on(space.cpu, || call(&space.mm))
    }

    /// Puts leaves into empty cells of the model, as large as the library made them: within these cells, not
    /// over mapped cells, and not over bad memory.
    pub(super) fn adopt(&mut self, task: usize, slot: Slot, range: Range<usize>, marked: bool) {
        let root = self.spaces[task].mm.root();
        let place = self.model.spaces[task].get_mut(&slot).expect("mapped");
        let page = self.model.files[slot.0].page(place.index);
        let new = Leaf::new(place.writable, marked);
        let mut at = range.start;
        while at < range.end {
            if place.cells[at] != Cell::Empty || page.bad.contains(&at) {
                at += 1;
                continue;
            }
            let addr = Self::addr(slot, at);
            let leaf = self.machine.probe(root, VirtAddr(addr)).expect("it came");
            let end = at + leaf.frames as usize;
            assert!(leaf.addr.0 == addr && end <= range.end, "{leaf:?} is not where something was missing");
            let first = leaf.frame.0 - at as u64;
            assert_eq!(page.frame.get_or_insert(quire::addr::Frame(first)).0, first, "always the same page");
            assert!(page.bad.range(at..end).next().is_none(), "{leaf:?} maps bad memory");
            assert!(place.cells[at..end].iter().all(|cell| *cell == Cell::Empty), "{leaf:?} hides something");
            let size = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G]
                .into_iter()
                .find(|size| size.frames() == leaf.frames);
            place.cells[at..end].fill(Cell::Mapped(Leaf { size: size.expect("a size of leaves"), ..new }));
            place.fresh &= leaf.frames as usize == place.cells.len();
            at = end;
        }
    }

    /// A fault mapped a cell: a page without any mapped part is mapped as a whole.
    fn adopt_fault(&mut self, task: usize, slot: Slot, at: usize) {
        let root = self.spaces[task].mm.root();
        let leaf = self.machine.probe(root, VirtAddr(Self::addr(slot, at))).expect("the fault mapped it");
        let start = ((leaf.addr.0 - Self::addr(slot, 0)) / PAGE) as usize;
        let place = &self.model.spaces[task][&slot];
        let bad =
            self.model.files[slot.0].pages[&place.index].as_ref().is_some_and(|page| !page.bad.is_empty());
        if place.fresh && !bad {
            assert_eq!(leaf.frames as usize, place.cells.len(), "as much as is missing");
        }
        assert!(!bad || leaf.frames == 1, "no larger leaf covers bad memory");
        self.adopt(task, slot, start..start + leaf.frames as usize, false);
    }

    /// Accesses without a fault find what the model says: no translation from before a verb is used.
    pub(super) fn look(&self, task: usize, slot: Slot, at: usize) {
        let addr = VirtAddr(Self::addr(slot, at) + WORD);
        let place = self.model.spaces[task].get(&slot);
        let cell = place.map_or(Cell::Empty, |place| place.cells[at]);
        let mut bytes = [0; 8];
        let read = self.on(task, |_| self.machine.read(addr, &mut bytes));
        let page = place.and_then(|place| self.model.files[slot.0].pages.get(&place.index)?.as_ref());
        match (cell, page) {
            (Cell::Mapped(leaf), Some(page)) => {
                let word = page.words.get(&at).copied().unwrap_or(0);
                assert_eq!(read.map(|()| u64::from_le_bytes(bytes)), Ok(word), "task {task}, {slot:?}, {at}");
                if !leaf.write {
                    let written = self.on(task, |_| self.machine.write(addr, &bytes));
                    assert_eq!(written.map_err(|fault| fault.cause), Err(FaultCause::Protection));
                }
            }
            _ => {
                let cause = read.map_err(|fault| fault.cause);
                assert_eq!(cause, Err(FaultCause::NotPresent), "task {task}, {slot:?}, {at}: {cell:?}");
                if cell == Cell::Lost {
                    let told = self.on(task, |mm| mm.fault(addr, Access::Read));
                    assert_eq!(told, Err(FaultError::Poisoned));
                }
            }
        }
    }

    /// A program's load or store, or a guest's.
    pub(super) fn access(&mut self, task: usize, slot: Slot, at: usize, word: Option<u64>, guest: bool) {
        println!("access {task} {slot:?} {at} {word:?} {guest}");
        self.look(task, slot, at);
        let expected = self.model.access(task, slot, at, word.is_some());
        let addr = Self::addr(slot, at) + WORD;
        let (machine, nested) = (self.machine, &self.nested);
        let done = self.on(task, |mm| match (word, guest) {
            (None, false) => load(machine, mm, addr),
            (Some(word), false) => store(machine, mm, addr, word).map(|()| 0),
            (None, true) => nested.cpu(0).load(mm, addr - FIRST[1]),
            (Some(word), true) => nested.cpu(0).store(mm, addr - FIRST[1], word).map(|()| 0),
        });
        assert_eq!(done.map(drop), expected.map(drop), "task {task}, {slot:?}, {at}");
        if expected == Ok(true) {
            self.adopt_fault(task, slot, at);
        }
        let Ok(found) = done else { return };
        let index = self.model.spaces[task][&slot].index;
        let words = &mut self.model.files[slot.0].page(index).words;
        match word {
            Some(word) => _ = words.insert(at, word),
            None => assert_eq!(found, words.get(&at).copied().unwrap_or(0)),
        }
    }

    /// `MADV_POPULATE_READ` or `_WRITE` of a whole place.
    pub(super) fn populate(&mut self, task: usize, slot: Slot, write: bool) {
        println!("populate {task} {slot:?} {write}");
        let len = cells_of(slot.0);
        let advice = if write { Advice::PopulateWrite } else { Advice::PopulateRead };
        let addr = VirtAddr(Self::addr(slot, 0));
        let done = self.on(task, |mm| mm.madvise(addr, len as u64 * PAGE, advice));
        let (mut stopped, mut end) = (Ok(()), len);
        for at in 0..len {
            if let Err(error) = self.model.access(task, slot, at, write) {
                (stopped, end) = (Err(error), at);
                break;
            }
        }
        let expected = stopped.map_err(|error| match error {
            FaultError::NotMapped => MmError::NoMemory,
            FaultError::Protection => MmError::Invalid,
            _ => MmError::Fault,
        });
        assert_eq!(done, expected, "{stopped:?} at {end}");
        if end > 0 {
            self.adopt(task, slot, 0..end, false);
        }
    }

    pub(super) fn map(&mut self, task: usize, slot: u64, count: u64, of: &Mapping) {
        println!("map {task} {slot} {count} {of:?}");
        let unit = HugeSize::ALL[of.size].bytes() / HUGE;
        let addr = Self::addr((of.size, slot), 0);
        let mut request =
            of_file(&self.files[of.size], Sharing::Shared, addr, (of.first * unit, count * unit));
        request.prot = if of.writable { RW } else { R };
        request.noreserve = of.noreserve;
        let made = self.on(task, |mm| mm.mmap(&request).map(drop));
        assert_eq!(made, self.model.map(task, slot..slot + count, of), "{of:?}");
    }

    pub(super) fn unmap(&mut self, piece: &Piece) {
        println!("unmap {piece:?}");
        assert_eq!(self.on(piece.task, |mm| mm.munmap(piece.addr(), piece.len())), Ok(()));
        for (slot, _) in Model::parts(piece.size, &piece.cells) {
            self.model.spaces[piece.task].remove(&slot);
        }
    }

    pub(super) fn split(&mut self, piece: &Piece) {
        println!("split {piece:?}");
        let done = self.on(piece.task, |mm| mm.madvise(piece.addr(), piece.len(), Advice::Split));
        let places = &mut self.model.spaces[piece.task];
        let slots = || Model::parts(piece.size, &piece.cells).into_iter().map(|(slot, _)| slot);
        if slots().any(|slot| !places.contains_key(&slot)) {
            return assert_eq!(done, Err(MmError::NoMemory));
        }
        assert_eq!(done, Ok(()));
        slots().for_each(|slot| places.get_mut(&slot).expect("seen").split = true);
    }

    pub(super) fn dont_need(&mut self, piece: &Piece) {
        println!("dont_need {piece:?}");
        let done = self.on(piece.task, |mm| mm.madvise(piece.addr(), piece.len(), Advice::DontNeed));
        assert_eq!(done, self.model.dont_need(piece.task, piece.size, piece.cells.clone()), "{piece:?}");
    }

    /// Makes whole pages read-only or writable, up to the first hole.
    pub(super) fn protect(&mut self, piece: &Piece, writable: bool) {
        println!("protect {piece:?} {writable}");
        let right = if writable { RW } else { R };
        let done = self.on(piece.task, |mm| mm.mprotect(piece.addr(), piece.len(), right));
        for (slot, part) in Model::parts(piece.size, &piece.cells) {
            let Some(place) = self.model.spaces[piece.task].get_mut(&slot) else {
                return assert_eq!(done, Err(MmError::NoMemory));
            };
            place.writable = writable;
            place.each(part, |leaf| {
                leaf.write = writable && (leaf.write || leaf.soft && !leaf.marked);
            });
        }
        assert_eq!(done, Ok(()));
    }

    /// A verb that takes the right to store in order to notice stores; `change` is its effect on each leaf.
    pub(super) fn track(
        &mut self,
        piece: &Piece,
        verb: impl Fn(&Space<'m>, VirtAddr, u64) -> Result<(), MmError>,
        change: impl Fn(&mut Leaf),
    ) {
        println!("track {piece:?}");
        let done = self.on(piece.task, |mm| verb(mm, piece.addr(), piece.len()));
        let parts = Model::parts(piece.size, &piece.cells);
        let places = &mut self.model.spaces[piece.task];
        let len = cells_of(piece.size);
        let cuts = |slot: &Slot, part: &Range<usize>| {
            places.get(slot).is_some_and(|place| !place.split) && (part.start > 0 || part.end < len)
        };
        if parts.iter().any(|(slot, part)| cuts(slot, part)) {
            return assert_eq!(done, Err(MmError::Invalid));
        }
        assert_eq!(done, Ok(()));
        for (slot, part) in parts {
            if let Some(place) = places.get_mut(&slot) {
                place.cut_ends(&part);
                place.each(part, &change);
            }
        }
    }

    pub(super) fn fork(&mut self, task: usize) {
        println!("fork {task}");
        let taken = |cpu: &CpuId| self.spaces.iter().any(|space| space.cpu == *cpu);
        let cpu = (0..).map(CpuId).find(|cpu| !taken(cpu)).expect("a CPU");
        let child = self.on(task, fork);
        self.machine.run_on(cpu, || child.switch_in());
        self.spaces.push(RealSpace { mm: child, cpu });
        let places = self.model.spaces[task].iter().map(|(&slot, place)| (slot, place.inherited())).collect();
        self.model.spaces.push(places);
    }

    pub(super) fn exit(&mut self, task: usize) {
        println!("exit {task}");
        let space = self.spaces.remove(task);
        self.machine.run_on(space.cpu, || {
            space.mm.switch_out();
            space.mm.exit();
        });
        self.model.spaces.remove(task);
    }

    pub(super) fn remap(&mut self, task: usize, from: Slot, to: u64) {
        println!("remap {task} {from:?} {to}");
        let bytes = HugeSize::ALL[from.0].bytes();
        let [source, target] = [from, (from.0, to)].map(|slot| VirtAddr(Self::addr(slot, 0)));
        let moved = self.on(task, |mm| mm.mremap(source, bytes, bytes, Remap::Fixed(target)));
        let places = &mut self.model.spaces[task];
        if from.1 == to {
            return assert_eq!(moved, Err(MmError::Invalid));
        }
        let Some(place) = places.remove(&from) else { return assert_eq!(moved, Err(MmError::Fault)) };
        assert_eq!(moved, Ok(target));
        places.insert((from.0, to), place);
    }

    /// Collapses the piece; a refusal changes nothing.
    pub(super) fn collapse(&mut self, piece: &Piece, steps: CollapseSteps) {
        println!("collapse {piece:?} {steps:?}");
        // The CPU now caches translations of every table, and must not use them afterwards.
        self.look_around(piece);
        let done = self.on(piece.task, |mm| mm.collapse_in(piece.addr(), piece.len(), steps));
        let places = &mut self.model.spaces[piece.task];
        let covered =
            Model::parts(piece.size, &piece.cells).iter().all(|(slot, _)| places.contains_key(slot));
        let (mut made, mut large, mut refused) = ([0, 0], 0, vec![0; Refusal::ALL.len()]);
        let len = cells_of(piece.size);
        let mut at = piece.cells.start.next_multiple_of(512);
        while at + 512 <= piece.cells.end {
            let slot = (piece.size, (at / len) as u64);
            let Some(place) = places.get_mut(&slot) else {
                at += 512;
                continue;
            };
            let gigantic = len > 512 && at.is_multiple_of(len) && at + len <= piece.cells.end;
            let size = if gigantic { PageSize::Size1G } else { PageSize::Size2M };
            let (start, frames) = (at % len, size.frames() as usize);
            at += frames;
            if !place.split {
                refused[Refusal::HugePages as usize] += 1;
            } else if place.cells[start].leaf().is_some_and(|leaf| leaf.size >= size) {
                large += 1;
            } else {
                match place.as_one(start..start + frames, size) {
                    Err(why) => refused[why as usize] += 1,
                    Ok(leaf) => {
                        place.cells[start..start + frames].fill(Cell::Mapped(leaf));
                        made[usize::from(gigantic)] += 1;
                    }
                }
            }
        }
        if !covered {
            return assert_eq!(done, Err(MmError::NoMemory));
        }
        let done = done.expect("it is mapped");
        let why: Vec<u64> = Refusal::ALL.iter().map(|&why| done.refused(why)).collect();
        assert_eq!(([done.reshaped, done.gigantic], done.large, done.copied), (made, large, 0), "{piece:?}");
        assert_eq!(why, refused, "{piece:?}");
        self.look_around(piece);
    }

    /// Looks at a cell of each 2 MiB.
    fn look_around(&self, piece: &Piece) {
        for (slot, part) in Model::parts(piece.size, &piece.cells) {
            part.step_by(512).for_each(|at| self.look(piece.task, slot, at + 7));
        }
    }

    /// A frame of a known page goes bad.
    pub(super) fn lose(&mut self, random: &mut Rng) {
        let wanted = random.usize(0..2);
        let files = self.model.files.iter().enumerate().filter(|(size, _)| *size == wanted);
        let pages = files.flat_map(|(size, file)| {
            let known = move |(&index, page): (&u64, &Option<super::model::Page>)| {
                Some((size, index, page.as_ref()?.frame?))
            };
            file.pages.iter().filter_map(known)
        });
        let pages: Vec<_> = pages.collect();
        if pages.is_empty() {
            return;
        }
        let (size, index, first) = pages[random.usize(0..pages.len())];
        // Pages with bad memory leave their pools in the end: a few pages must remain.
        let bad = self.model.files[size].present().filter(|page| !page.bad.is_empty()).count() as u64;
        if self.model.pools[size] - bad <= [3, 1][size] {
            return;
        }
        let at = random.usize(0..cells_of(size).min(2048));
        println!("lose {size} {index} {at}");
        let failed = self.manager.memory_failure(first.add(at as u64));
        if self.model.files[size].page(index).bad.contains(&at) {
            return assert_eq!(failed, Err(quire::error::MemoryFailureError::AlreadyPoisoned));
        }
        assert_eq!(failed, Ok(Failed::Huge(HugeFailure::InUse)));
        self.model.lose(size, index, at);
        self.check();
        self.answer_around(random, size, index, at);
    }
}
