//! The naive model: every mapped page of every address space, and a byte of every frame.

use std::collections::{BTreeMap, HashMap, HashSet};

use hosted::Translation;
use quire::addr::{Frame, VirtAddr, VirtRange};
use quire::arch::{Entry, EntryFlags, Protection};
use quire::tlb::RssChange;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    pub frame: Frame,
    pub write: bool,
    pub user: bool,
    pub exec: bool,
    pub anon: bool,
    pub lazy: bool,
    /// Marked for a handler.
    pub marked: bool,
    pub soft_dirty: bool,
    /// Used, and stored through; the library may report more such pages, never fewer.
    pub accessed: bool,
    pub dirty: bool,
    /// It lost the right to store when its table was shared, and gets it back if no other address space maps
    /// it by then.
    pub latent: bool,
}

impl Page {
    pub fn new(frame: Frame, flags: EntryFlags) -> Self {
        Self {
            frame,
            write: flags.contains(EntryFlags::WRITE),
            user: flags.contains(EntryFlags::USER),
            exec: !flags.contains(EntryFlags::NO_EXECUTE),
            anon: flags.contains(EntryFlags::ANON),
            lazy: flags.contains(EntryFlags::LAZY_FREE),
            marked: flags.contains(EntryFlags::UFFD_WP),
            soft_dirty: flags.contains(EntryFlags::SOFT_DIRTY),
            accessed: flags.contains(EntryFlags::ACCESSED),
            dirty: flags.contains(EntryFlags::DIRTY),
            latent: false,
        }
    }

    /// Gives the page these rights. The right to store is given only if the page had it, or if `grant` says
    /// so and no store must be noticed.
    pub fn protect(&mut self, protection: Protection, grant: bool) {
        self.write = protection.contains(Protection::WRITE)
            && (self.write || grant && self.soft_dirty && !self.marked);
        self.latent &= protection.contains(Protection::WRITE) && !self.write;
        self.user = protection != Protection::NONE;
        self.exec = protection.contains(Protection::EXEC);
    }

    /// Takes the right to store away for now.
    pub fn share(&mut self) {
        self.latent |= self.write;
        self.write = false;
    }

    /// Forgets stores; the next store is noticed.
    pub fn clear_soft_dirty(&mut self) {
        (self.soft_dirty, self.write, self.latent) = (false, false, false);
    }

    pub fn mark(&mut self) {
        (self.marked, self.write, self.latent) = (true, false, false);
    }

    /// Without the bits that hardware sets, and those that it does not know.
    fn settled(self) -> Self {
        Self { dirty: false, accessed: false, latent: false, ..self }
    }

    /// Checks that `found` agrees in frame, rights and marks, and has every bit that hardware has set here.
    fn check(self, addr: u64, found: Self) {
        assert!(self.settled() == found.settled(), "{addr:#x} is {found:?} and should be {self:?}");
        assert!(found.dirty || !self.dirty, "{addr:#x}: a store was forgotten (invariant 3)");
        assert!(found.accessed || !self.accessed, "{addr:#x}: a use was forgotten (invariant 3)");
    }
}

#[derive(Clone, Default, Debug)]
pub struct Space(pub BTreeMap<u64, Page>);

impl Space {
    pub fn within(&self, range: VirtRange) -> impl Iterator<Item = (u64, Page)> + '_ {
        self.0.range(range.start.0..range.end.0).map(|(&addr, &page)| (addr, page))
    }

    pub fn is_empty(&self, range: VirtRange) -> bool {
        self.within(range).next().is_none()
    }

    pub fn change(&mut self, range: VirtRange, mut change: impl FnMut(u64, &mut Page)) {
        self.0.range_mut(range.start.0..range.end.0).for_each(|(&addr, page)| change(addr, page));
    }

    /// Takes the pages of a range out. Returns by how much resident memory changes.
    pub fn unmap(&mut self, range: VirtRange) -> RssChange {
        let mut change = RssChange::default();
        let gone = self.within(range).collect::<Vec<_>>();
        for (addr, page) in gone {
            self.0.remove(&addr);
            if page.anon {
                change.anon -= 1;
            } else {
                change.file -= 1;
            }
        }
        change
    }

    /// The addresses around `range` that hold no page but its own.
    pub fn limits(&self, range: VirtRange, end: VirtAddr) -> VirtRange {
        let before = self.0.range(..range.start.0).next_back().map_or(0, |(&addr, _)| addr + 4096);
        let after = self.0.range(range.end.0..).next().map_or(end.0, |(&addr, _)| addr);
        VirtRange::new(VirtAddr(before), VirtAddr(after))
    }

    /// Compares with what an independent walker found. Returns the anonymous frames that can be stored to
    /// again.
    pub fn compare(&mut self, found: &[Translation]) -> Vec<u64> {
        let mut granted = Vec::new();
        let mut pages = self.0.iter_mut();
        for leaf in found {
            for step in 0..leaf.frames {
                let addr = leaf.addr.0 + step * 4096;
                let flags = Entry::from_bits(leaf.entry).flags();
                let found = Page { write: leaf.write, ..Page::new(leaf.frame.add(step), flags) };
                let (&at, page) = pages.next().unwrap_or_else(|| panic!("{addr:#x} should not be mapped"));
                assert_eq!(at, addr, "another page is mapped than should be");
                if page.latent && found.write {
                    (page.latent, page.write) = (false, true);
                    granted.extend(page.anon.then_some(page.frame.0));
                }
                page.check(addr, found);
            }
        }
        assert_eq!(pages.next(), None, "a page is missing");
        granted
    }
}

/// How many leaves map each frame, as an independent walker found them. A table that several roots reach
/// counts once, wherever each of them has it.
pub fn leaves<'l>(found: impl Iterator<Item = &'l Translation>) -> HashMap<u64, u64> {
    let (mut counts, mut seen) = (HashMap::new(), HashSet::new());
    let place = |leaf: &Translation| (leaf.table, leaf.addr.0 % (leaf.frames * 4096 * 512));
    for leaf in found.filter(|leaf| seen.insert(place(leaf))) {
        (0..leaf.frames).for_each(|step| *counts.entry(leaf.frame.0 + step).or_default() += 1);
    }
    counts
}

pub fn counts<'s>(spaces: impl Iterator<Item = &'s Space>) -> HashMap<u64, u64> {
    let mut counts = HashMap::new();
    for page in spaces.flat_map(|space| space.0.values()) {
        *counts.entry(page.frame.0).or_default() += 1;
    }
    counts
}
