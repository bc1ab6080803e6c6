//! Compares the library with the model: leaves as hardware walks them, counts of frames, resident memory,
//! pools, words.

use hosted::Translation;
use quire::addr::{Frame, FrameRange, PageSize};
use quire::arch::{Entry, EntryFlags};
use quire::hugetlb::HugeSize;
use quire::vm::Usage;

use super::PAGE;
use super::model::{Cell, Leaf, Place, Slot, cells_of};
use super::verbs::Both;
use crate::hugetlb::world::{check, info};

/// A leaf in terms of both sides: its address, its frame, its bits.
type Shown = (u64, Frame, Leaf);

fn shown(leaf: &Translation) -> Shown {
    let bits = Entry::from_bits(leaf.entry);
    let size = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G]
        .into_iter()
        .find(|size| size.frames() == leaf.frames);
    assert!(leaf.accessed && leaf.user, "{leaf:?}");
    let leaf_bits = Leaf {
        size: size.expect("a size of leaves"),
        write: leaf.write,
        marked: bits.has(EntryFlags::UFFD_WP),
        dirty: leaf.dirty,
        soft: bits.has(EntryFlags::SOFT_DIRTY),
    };
    (leaf.addr.0, leaf.frame, leaf_bits)
}

impl Both<'_, '_, '_> {
    fn frame_of(&self, slot: Slot, place: &Place) -> Frame {
        let page = self.model.files[slot.0].pages.get(&place.index).and_then(Option::as_ref);
        page.and_then(|page| page.frame).expect("a mapped page has a known frame")
    }

    /// The leaves of an address space, from its cells alone.
    fn expected_leaves(&self, task: usize) -> Vec<Shown> {
        let mut all = Vec::new();
        for (&slot, place) in &self.model.spaces[task] {
            let mut at = 0;
            while at < place.cells.len() {
                let Cell::Mapped(leaf) = place.cells[at] else {
                    at += 1;
                    continue;
                };
                let frames = leaf.size.frames() as usize;
                let alike = place.cells[at..].iter().take(frames);
                assert!(at.is_multiple_of(frames) && alike.clone().count() == frames);
                assert!(alike.clone().all(|cell| *cell == place.cells[at]), "a leaf is one thing");
                let start = Self::addr(slot, at);
                all.push((start, self.frame_of(slot, place).add(at as u64), leaf));
                at += frames;
            }
        }
        all.sort_unstable_by_key(|leaf| leaf.0);
        all
    }

    /// After every verb.
    pub(super) fn check(&self) {
        for (task, space) in self.spaces.iter().enumerate() {
            let expected = self.expected_leaves(task);
            let found: Vec<Shown> = self.machine.leaves(space.mm.root()).iter().map(shown).collect();
            for (at, pair) in expected.iter().zip(&found).enumerate() {
                assert_eq!(pair.0, pair.1, "task {task}, leaf {at}");
            }
            assert_eq!(expected.len(), found.len(), "task {task}");
            let mapped: u64 = expected.iter().map(|(_, _, leaf)| leaf.size.frames()).sum();
            let rss = space.mm.rss();
            assert_eq!((rss.huge, rss.anon, rss.file, rss.shmem), (mapped, 0, 0, 0), "task {task}");
        }
        for (size, file) in self.files.iter().enumerate() {
            let (free, reserved) = self.model.free_and_promised(size);
            let pool = info(self.manager, HugeSize::ALL[size]);
            assert_eq!((pool.total, pool.free, pool.reserved), (self.model.pools[size], free, reserved));
            assert_eq!(file.huge_pages(), (self.model.pools[size] - free, reserved));
        }
    }

    /// How often each frame of a page is mapped, by a look at every cell.
    fn counts(&self, size: usize, index: u64) -> Vec<u64> {
        let mut counts = vec![0; cells_of(size)];
        for (slot, place) in self.model.spaces.iter().flatten() {
            if slot.0 == size && place.index == index {
                for (count, cell) in counts.iter_mut().zip(&place.cells) {
                    *count += u64::from(cell.leaf().is_some());
                }
            }
        }
        counts
    }

    fn check_counts(&self, size: usize, index: u64, first: Frame) -> Vec<u64> {
        let counts = self.counts(size, index);
        let mut next = 0;
        self.manager.kpagecount(FrameRange::new(first, counts.len() as u64), |run, count| {
            assert_eq!(run.start, first.add(next));
            let wrong = (next..next + run.count).find(|&at| counts[at as usize] != count);
            assert_eq!(wrong.map(|at| (at, counts[at as usize])), None, "kpagecount says {count}");
            next += run.count;
        });
        assert_eq!(next, counts.len() as u64);
        let pages = self.manager.pages();
        for (at, &count) in counts.iter().enumerate().filter(|(at, _)| at % 509 == 0 || *at < 600) {
            assert_eq!(pages.counts().mapcount(first.add(at as u64)), count, "frame {at}");
        }
        counts
    }

    fn check_usage(&self, task: usize, counts: &[Vec<Option<Vec<u64>>>; 2]) {
        let mut expected = Usage::default();
        for (&slot, place) in &self.model.spaces[task] {
            for (at, leaf) in place.cells.iter().enumerate().filter_map(|(at, cell)| Some((at, cell.leaf()?)))
            {
                let count = counts[slot.0][place.index as usize].as_ref().expect("it is mapped")[at];
                let row =
                    if count > 1 { &mut expected.shared_hugetlb } else { &mut expected.private_hugetlb };
                *row += PAGE;
                expected.hugetlb_pss += (PAGE << 12) / count;
                expected.hugetlb_by_size[leaf.size as usize] += PAGE;
            }
        }
        assert_eq!(self.spaces[task].mm.usage_of_all(), expected, "task {task}");
    }

    /// Now and then: every frame, every word, every structure of the library, every copy of the secondary
    /// MMU.
    pub(super) fn check_all(&self) {
        self.check();
        check(self.manager);
        self.nested.check();
        let mut counts = [Vec::new(), Vec::new()];
        for (size, counts) in counts.iter_mut().enumerate() {
            for (&index, page) in &self.model.files[size].pages {
                counts.resize(index as usize + 1, None);
                if let Some(first) = page.as_ref().and_then(|page| page.frame) {
                    counts[index as usize] = Some(self.check_counts(size, index, first));
                }
            }
        }
        for (task, space) in self.spaces.iter().enumerate() {
            space.mm.validate().expect("broken address space");
            self.check_usage(task, &counts);
            self.check_words(task);
        }
        self.machine.assert_clean();
    }

    /// Reads every word that was ever stored in each address space, through its CPU's TLB.
    fn check_words(&self, task: usize) {
        for (&slot, place) in &self.model.spaces[task] {
            let Some(Some(page)) = self.model.files[slot.0].pages.get(&place.index) else { continue };
            for &at in page.words.keys() {
                self.look(task, slot, at);
            }
            place.cells.iter().enumerate().filter(|(_, cell)| **cell == Cell::Lost).for_each(|(at, _)| {
                self.look(task, slot, at);
            });
        }
    }
}
