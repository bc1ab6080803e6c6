//! A list of operations from a seed drives the page tables and a naive model together. After each, an
//! independent walker compares what is mapped, and CPUs read and write through their modelled TLBs what the
//! model says.

use hosted::raw::RawPages;
use hosted::raw::RawTables;
use std::collections::HashMap;

use fastrand::Rng;
use quire::addr::{FrameRange, PageSize, VirtAddr, VirtRange};
use quire::arch::{Entry, EntryFlags, Level};
use quire::cpu::CpuId;
use quire::error::MapError;
use quire::pgtable::{GrantWrite, Zap};

use quire::tlb::{FlushBatch, MmuGather};

use crate::pgtable::model::{Page, counts};
use crate::pgtable::support::*;
use crate::pgtable::world::{CPUS, World};
use testkit::{order, runs, seed, with_allocator};

type Operation = fn(&mut World<'_, '_>);
const OPERATIONS: &[(&str, u32, Operation)] = &[
    ("map", 8, |world| world.map()),
    ("map_large", 2, |world| world.map_large()),
    ("map_file", 3, |world| world.map_file()),
    ("unmap", 5, |world| world.unmap()),
    ("protect", 4, |world| world.protect()),
    ("split", 1, |world| world.split()),
    ("collapse", 2, |world| world.collapse()),
    ("fork", 1, |world| world.fork()),
    ("exit", 1, |world| world.exit()),
    ("move", 3, |world| world.move_range()),
    ("replace", 3, |world| world.replace()),
    ("upgrade", 3, |world| world.upgrade()),
    ("lazy_free", 2, |world| world.lazy_free()),
    ("clear_soft_dirty", 2, |world| world.clear_soft_dirty()),
    ("mark", 2, |world| world.mark()),
    ("unmark", 2, |world| world.unmark()),
    ("switch", 3, |world| world.switch()),
    ("access", 20, |world| world.access()),
];

/// Invariants 3, 5, W2 and W3.
#[test]
fn page_tables_agree_with_the_model() {
    let first = seed(1);
    for seed in first..first + runs(6) {
        run(seed, 700, |_| true);
    }
}

/// Large leaves lose the right to store and get it back, while forks map all or some of their frames.
#[test]
fn rights_of_large_leaves_agree_with_the_model() {
    let names =
        ["map_large", "unmap", "protect", "fork", "exit", "clear_soft_dirty", "mark", "unmark", "access"];
    let first = seed(1);
    for seed in first..first + runs(3) {
        run(seed, 400, |name| names.contains(&name));
    }
}

fn run(seed: u64, steps: usize, wanted: impl Fn(&str) -> bool) {
    with_allocator(small_machine(), |machine, allocator| {
        let before = used(allocator);
        let mut rng = Rng::with_seed(seed);
        // Each run draws which operations occur at all; mapping and access always do.
        let drawn = OPERATIONS.iter().filter(|(name, ..)| {
            wanted(name) && (matches!(*name, "map" | "map_large" | "access") || rng.u8(..4) > 0)
        });
        let chosen = drawn.flat_map(|op| (0..op.1).map(move |_| op)).collect::<Vec<_>>();
        let mut world = World {
            machine,
            allocator,
            rng,
            spaces: Vec::new(),
            runs: [None; CPUS as usize],
            bytes: HashMap::new(),
            share: !seed.is_multiple_of(3),
            files: Vec::new(),
        };
        world.add_space();
        for step in 0..steps {
            let (name, _, operation) = chosen[world.rng.usize(..chosen.len())];
            let guard = Blame(seed, step, name);
            operation(&mut world);
            world.check(step % 16 == 0);
            core::mem::forget(guard);
        }
        world.end();
        assert_eq!(used(allocator), before, "seed {seed}: memory was lost");
        assert_eq!(allocator.validate(), Ok(()), "seed {seed}");
    });
}

/// Prints the seed and the step on a panic.
struct Blame(u64, usize, &'static str);

impl Drop for Blame {
    fn drop(&mut self) {
        eprintln!("QUIRE_SEED={} fails at step {}, a {}", self.0, self.1, self.2);
    }
}

impl World<'_, '_> {
    fn map(&mut self) {
        let size = order(self.rng.u8(0..=9));
        let (space, addr) = (self.any_space(), self.place(size.frames(), size.frames()).start);
        let Some(frame) = self.new_folio(size) else { return };
        let (run, flags) = (FrameRange::folio(frame, size), self.any_flags());
        let free = self.spaces[space].1.is_empty(range(addr.0, size.bytes()));
        let mut outcome = self.tables(space).map_raw(addr, run, flags);
        if outcome == Err(MapError::Shared) {
            self.own(space, range(addr.0, 4096));
            outcome = self.tables(space).map_raw(addr, run, flags);
        }
        assert_eq!(outcome, if free { Ok(()) } else { Err(MapError::Occupied) });
        if free {
            self.note(space, addr, run, flags);
        } else {
            self.allocator.free_raw(frame, size).unwrap();
        }
    }

    fn map_large(&mut self) {
        let (space, addr) = (self.any_space(), self.place(512, 512).start);
        let Some(frame) = self.new_folio(BLOCK) else { return };
        let flags = self.any_flags();
        let free = self.spaces[space].1.is_empty(range(addr.0, 2 * MIB));
        match self.tables(space).map_large_raw(addr, frame, PageSize::Size2M, flags) {
            Ok(()) => {
                assert!(free);
                self.note(space, addr, FrameRange::folio(frame, BLOCK), flags);
            }
            // A table without leaves is an obstacle as well.
            Err(error) => {
                assert_eq!(error, MapError::Occupied);
                self.allocator.free_raw(frame, BLOCK).unwrap();
            }
        }
    }

    fn map_file(&mut self) {
        if self.files.len() < 4 {
            let size = order(self.rng.u8(0..=5));
            let Some(frame) = self.new_folio(size) else { return };
            self.files.push(FrameRange::folio(frame, size));
            self.allocator.frames().hold(FrameRange::folio(frame, size));
        }
        let run = self.files[self.rng.usize(..self.files.len())];
        let (space, addr) = (self.any_space(), self.place(run.count, run.count).start);
        let flags = self.any_flags().without(EntryFlags::ANON);
        let taken = self.spaces[space].1.within(range(addr.0, run.count * 4096)).count() as u64;
        let large = self.tables(space).lookup(addr).leaf_size() == Some(PageSize::Size2M);
        let mut outcome = self.tables(space).map_where_empty_raw(addr, run, flags);
        if outcome == Err(MapError::Shared) {
            self.own(space, range(addr.0, 4096));
            outcome = self.tables(space).map_where_empty_raw(addr, run, flags);
        }
        if large {
            return assert_eq!(outcome, Err(MapError::Occupied));
        }
        assert_eq!(outcome, Ok(run.count - taken));
        for at in 0..run.count {
            let page = Page::new(run.start.add(at), flags);
            self.spaces[space].1.0.entry(addr.0 + at * 4096).or_insert(page);
        }
    }

    fn unmap(&mut self) {
        let (space, part) = (self.any_space(), self.any_range());
        self.unmap_range(space, part);
    }

    fn unmap_range(&mut self, space: usize, part: VirtRange) {
        let (context, model) = &self.spaces[space];
        let limits = model.limits(part, context.mode().user_range().end);
        let zap = Zap { range: part, limits, detach: self.rng.u8(..3) > 0 };
        let mut gather = MmuGather::new(self.allocator, context);
        let outcome = self.tables(space).unmap(&zap, &mut gather);
        let change = gather.finish();
        assert_eq!(outcome, Ok(()));
        assert_eq!(change, self.spaces[space].1.unmap(part));
    }

    fn protect(&mut self) {
        let (space, mut part, protection) = (self.any_space(), self.any_range(), self.any_protection());
        if self.rng.bool() {
            // Large leaves are few: half of the time one is drawn, if there is one.
            let large = |&addr: &u64| self.tables(space).lookup(VirtAddr(addr)).level == Level::PMD;
            let found =
                self.spaces[space].1.0.keys().copied().filter(|addr| addr % (2 * MIB) == 0).find(large);
            part = found.map_or(part, |addr| range(addr, 2 * MIB));
        }
        let exclusive = self.rng.bool();
        let grant = if exclusive { GrantWrite::Exclusive } else { GrantWrite::Never };
        let counted = counts(self.spaces.iter().map(|(_, model)| model));
        let is_large = |addr: u64| {
            let block = range(addr & !(2 * MIB - 1), 2 * MIB);
            part.covers(block) && self.tables(space).lookup(VirtAddr(addr)).level == Level::PMD
        };
        let model = &self.spaces[space].1;
        let ours = |page: &Page| page.anon && counted[&page.frame.0] == 1;
        // A large leaf gets the right to store back if all its pages would.
        let whole =
            |addr: u64| model.within(range(addr & !(2 * MIB - 1), 2 * MIB)).all(|(_, page)| ours(&page));
        let granted = |addr: u64, page: &Page| exclusive && ours(page) && (!is_large(addr) || whole(addr));
        let granted = model.within(part).map(|(addr, page)| granted(addr, &page)).collect::<Vec<_>>();
        let mut owed = FlushBatch::new();
        let outcome = self.tables(space).protect(part, protection, grant, &mut owed);
        owed.flush(self.allocator, &self.spaces[space].0);
        assert_eq!(outcome, Ok(()));
        let mut granted = granted.into_iter();
        self.spaces[space].1.change(part, |_, page| page.protect(protection, granted.next() == Some(true)));
    }

    fn split(&mut self) {
        let (space, part) = (self.any_space(), self.any_range());
        assert_eq!(self.tables(space).split_at(part.start), Ok(()));
    }

    fn collapse(&mut self) {
        let (space, part) = (self.any_space(), self.place(512, 512));
        if self.share && self.rng.bool() {
            // A table that no other space reaches any more can be replaced.
            let collapsed = self.tables(space).collapse(part.start).expect("it is aligned");
            if collapsed {
                self.join_soft_dirty(space, part);
            }
            return;
        }
        // The rights of the leaves are known once the space has unshared the table.
        self.own(space, part);
        self.check(false);
        self.spaces[space].1.change(part, |_, page| page.latent = false);
        let pages = self.spaces[space].1.within(part).map(|(_, page)| page).collect::<Vec<_>>();
        let alike = |(at, page): (usize, &Page)| {
            let Page { dirty, accessed, soft_dirty, .. } = *page;
            let frame = pages[0].frame.add(at as u64);
            *page == Page { frame, dirty, accessed, soft_dirty, ..pages[0] }
        };
        let fits = pages.len() == 512
            && pages[0].frame.is_aligned(BLOCK)
            && pages.iter().enumerate().all(alike)
            && self.tables(space).lookup(part.start).level == Level::PTE;
        assert_eq!(self.tables(space).collapse(part.start), Ok(fits));
        if fits {
            self.join_soft_dirty(space, part);
        }
    }

    /// One leaf has one bit for all of its pages.
    fn join_soft_dirty(&mut self, space: usize, part: VirtRange) {
        let any = self.spaces[space].1.within(part).any(|(_, page)| page.soft_dirty);
        self.spaces[space].1.change(part, |_, page| page.soft_dirty = any);
    }

    fn move_range(&mut self) {
        let (space, from) = (self.any_space(), self.any_range());
        let align = if self.rng.bool() { 1 } else { 512.min(from.pages().next_power_of_two()) };
        let to = self.place(from.pages(), align);
        if from.overlaps(to) {
            return;
        }
        self.unmap_range(space, to);
        let mut owed = FlushBatch::new();
        let moved = self.tables(space).move_range(from, to.start, &mut owed);
        owed.flush(self.allocator, &self.spaces[space].0);
        assert_eq!(moved, Ok(()));
        let pages = self.spaces[space].1.within(from).collect::<Vec<_>>();
        self.spaces[space].1.unmap(from);
        let shifted = pages.iter().map(|(addr, page)| (addr - from.start.0 + to.start.0, *page));
        self.spaces[space].1.0.extend(shifted);
    }

    fn replace(&mut self) {
        let space = self.any_space();
        let Some((addr, page)) = self.any_page(space) else { return };
        self.own(space, range(addr.0, 4096));
        let found = self.tables(space).lookup(addr);
        let size = found.leaf_size().unwrap();
        let Some(frame) = self.new_folio(size.order()) else { return };
        let (old, addr) = (found.entry.frame(), addr.align_down(size.bytes()));
        let hint = quire::platform::TouchHint::Soon;
        self.allocator.copy_extent_raw(FrameRange::folio(old, size.order()), frame, hint).unwrap();
        for at in 0..size.frames() {
            self.bytes.insert(frame.0 + at, self.bytes[&(old.0 + at)]);
        }
        let flags = self.any_flags();
        let mut gather = MmuGather::new(self.allocator, &self.spaces[space].0);
        let new = Entry::leaf(frame, size, flags);
        let replaced = self.tables(space).replace_raw(addr, size, found.entry, new, &mut gather);
        let change = gather.finish();
        assert_eq!(replaced, Ok(true));
        let pages = size.frames() as i64;
        let expected = if page.anon { (-pages, 0) } else { (0, -pages) };
        assert_eq!((change.anon, change.file), expected);
        self.spaces[space].1.unmap(range(addr.0, size.bytes()));
        self.note(space, addr, FrameRange::folio(frame, size.order()), flags);
    }

    fn upgrade(&mut self) {
        let space = self.any_space();
        // A store to a marked page is for its handler.
        let Some((addr, page)) = self.any_page(space).filter(|(_, page)| !page.marked) else { return };
        if self.share && counts(self.spaces.iter().map(|(_, model)| model))[&page.frame.0] > 1 {
            return;
        }
        self.own(space, range(addr.0, 4096));
        let found = self.tables(space).lookup(addr);
        let size = found.leaf_size().unwrap();
        let addr = addr.align_down(size.bytes());
        let stale = found.entry.with(EntryFlags::SOFT_DIRTY | EntryFlags::ACCESSED);
        let more = EntryFlags::WRITE | EntryFlags::SOFT_DIRTY;
        assert!(self.tables(space).upgrade(addr, size, stale, more));
        self.spaces[space].1.change(range(addr.0, size.bytes()), |_, page| {
            (page.write, page.soft_dirty, page.latent) = (true, true, false);
        });
    }

    fn lazy_free(&mut self) {
        let (space, part) = (self.any_space(), self.any_range());
        let mut owed = FlushBatch::new();
        let marked = self.tables(space).mark_lazy_free(part, &mut owed);
        owed.flush(self.allocator, &self.spaces[space].0);
        let new = self.spaces[space].1.within(part).filter(|(_, page)| page.anon && !page.lazy).count();
        assert_eq!(marked, Ok(new as u64));
        self.spaces[space].1.change(part, |_, page| {
            page.lazy |= page.anon;
            page.dirty &= !page.anon;
            page.accessed &= !page.anon;
        });
    }

    fn clear_soft_dirty(&mut self) {
        let (space, part) = (self.any_space(), self.any_range());
        let mut owed = FlushBatch::new();
        assert_eq!(self.tables(space).clear_soft_dirty(part, &mut owed), Ok(()));
        owed.flush(self.allocator, &self.spaces[space].0);
        self.spaces[space].1.change(part, |_, page| page.clear_soft_dirty());
    }

    fn mark(&mut self) {
        let (space, part) = (self.any_space(), self.any_range());
        let mut owed = FlushBatch::new();
        assert_eq!(self.tables(space).mark_write_protected(part, &mut owed), Ok(()));
        owed.flush(self.allocator, &self.spaces[space].0);
        self.spaces[space].1.change(part, |_, page| page.mark());
    }

    fn unmark(&mut self) {
        let (space, part) = (self.any_space(), self.any_range());
        assert_eq!(self.tables(space).unmark_write_protected(part), Ok(()));
        self.spaces[space].1.change(part, |_, page| page.marked = false);
    }

    fn switch(&mut self) {
        let cpu = self.rng.u32(..CPUS);
        let next = (self.rng.u8(..4) > 0).then(|| self.any_space());
        self.machine.run_on(CpuId(cpu), || {
            match (self.runs[cpu as usize], next) {
                (Some(now), Some(next)) if now != next => {
                    self.spaces[now].0.switch_to(&self.spaces[next].0, self.machine);
                }
                (Some(now), None) => self.spaces[now].0.switch_out(self.machine),
                (None, Some(next)) => self.spaces[next].0.switch_in(self.machine),
                _ => {}
            };
        });
        self.runs[cpu as usize] = next;
    }

    /// A CPU reads and writes pages near each other; an access that the model allows may be refused once.
    fn access(&mut self) {
        let cpu = self.rng.u32(..CPUS);
        let Some(space) = self.runs[cpu as usize] else { return };
        let start = self.any_range().start.0;
        for addr in (0..8).map(|step| start + step * 4096) {
            let (store, value) = (self.rng.bool(), self.rng.u8(..));
            let page = self.spaces[space].1.0.get(&addr).copied();
            let allowed = page.is_some_and(|page| page.user && (page.write || !store));
            let mut byte = [value];
            let mut attempt = || {
                self.machine.run_on(CpuId(cpu), || match store {
                    true => self.machine.write(VirtAddr(addr), &byte),
                    false => self.machine.read(VirtAddr(addr), &mut byte),
                })
            };
            let done = attempt().is_ok() || allowed && attempt().is_ok();
            assert_eq!(done, allowed, "CPU {cpu}, store {store}, {addr:#x}: {page:?}");
            let Some(page) = page.filter(|_| done) else { continue };
            if store {
                self.bytes.insert(page.frame.0, value);
                self.spaces[space]
                    .1
                    .0
                    .entry(addr)
                    .and_modify(|page| (page.dirty, page.accessed) = (true, true));
            } else {
                self.spaces[space].1.0.entry(addr).and_modify(|page| page.accessed = true);
                assert_eq!(byte[0], self.bytes[&page.frame.0], "CPU {cpu} reads another frame at {addr:#x}");
            }
        }
    }
}
