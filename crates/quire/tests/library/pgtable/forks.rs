//! Address spaces are created and exit in the lockstep.

use quire::addr::VirtRange;
use quire::pgtable::CopyMode;
use quire::tlb::{FlushBatch, RssChange};

use crate::pgtable::model::Page;
use crate::pgtable::support::*;
use crate::pgtable::world::{SPACES, SPOT_PAGES, SPOTS, World};

impl World<'_, '_> {
    /// A child with a copy of everything, or with shared tables.
    pub fn fork(&mut self) {
        if self.spaces.len() == SPACES {
            return;
        }
        let parent = self.any_space();
        self.add_space();
        let child = self.spaces.len() - 1;
        if self.share {
            return self.fork_sharing(parent, child);
        }
        let mode = if self.rng.u8(..4) > 0 { CopyMode::Private } else { CopyMode::Shared };
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        for spot in SPOTS {
            let part = range(spot, SPOT_PAGES * 4096);
            let copied = self.tables(parent).copy(&self.tables(child), part, mode, &mut owed, &mut rss);
            assert_eq!(copied, Ok(()));
        }
        owed.flush(self.allocator, &self.spaces[parent].0);
        if mode == CopyMode::Private {
            self.spaces[parent].1.0.values_mut().for_each(|page| page.write = false);
        }
        let mut copy = self.spaces[parent].1.clone();
        if mode == CopyMode::Shared {
            copy.0.values_mut().for_each(|page| page.dirty = false);
        }
        copy.0.values_mut().for_each(|page| page.marked = false);
        self.spaces[child].1 = copy;
        assert_eq!(rss, check(self.allocator, &self.spaces[child].0).resident);
    }

    /// Shares the tables on one side of a random border, and copies the one across it.
    fn fork_sharing(&mut self, parent: usize, child: usize) {
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        for spot in SPOTS {
            let border = spot + self.rng.u64(0..=SPOT_PAGES / 16) * 16 * 4096;
            for part in [range(spot, border - spot), range(border, spot + SPOT_PAGES * 4096 - border)] {
                // Mapping within the limits shares all tables there; the next call finds that done.
                let first = range(part.start.0, part.len() / 8192 * 4096);
                for piece in [first, VirtRange::new(first.end, part.end)] {
                    let (from, to) = (self.tables(parent), self.tables(child));
                    assert_eq!(from.split_at(piece.end), Ok(()));
                    assert_eq!(from.share(&to, piece, part, CopyMode::Private, &mut owed, &mut rss), Ok(()));
                }
            }
        }
        owed.flush(self.allocator, &self.spaces[parent].0);
        self.spaces[parent].1.0.values_mut().for_each(Page::share);
        self.spaces[child].1 = self.spaces[parent].1.clone();
        self.spaces[child].1.0.values_mut().for_each(|page| page.marked = false);
        assert_eq!(rss, check(self.allocator, &self.spaces[child].0).resident);
    }

    pub fn exit(&mut self) {
        if self.spaces.len() > 1 {
            let space = self.any_space();
            self.leave(space);
            let (context, _) = self.spaces.swap_remove(space);
            let moved = self.spaces.len();
            self.runs.iter_mut().flatten().filter(|run| **run == moved).for_each(|run| *run = space);
            Tables::destroy(self.allocator, context);
        }
    }
}
