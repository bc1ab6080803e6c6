//! What happens to memory before a verb, drawn from a seed, so that it is the same for Linux and for Quire.
//!
//! ```text
//! populate   blocks of 2 MiB by one folio, by folios of 64 KiB, or by single frames, each kind in random order
//! drop       one page in 16, of every kind of folio (MADV_DONTNEED)
//! return     half of these are written again: single frames
//! copy       one page in 8 is written while a child lives, so that it gets a frame of its own; the child ends
//! look       after the caches were filled with other memory: pages of every second block are read
//! ```

use super::Aged;
use crate::bench::folio::{Folio, PAGE};

/// Seed of everything that is drawn.
const SEED: u64 = 23;

/// Pages of a block of 2 MiB.
const BLOCK_PAGES: usize = (2 << 20) / PAGE;

/// Blocks that keep the folio of 2 MiB with which they were populated: one of so many.
const UNTOUCHED_BLOCK: usize = 32;

/// The life of one memory, by numbers of pages.
pub(super) struct Life {
    /// Folios by the number of their first page, in the order in which they are populated: the largest first.
    pub(super) populated: [(Folio, Vec<u32>); 3],
    pub(super) dropped: Vec<u32>,
    pub(super) returned: Vec<u32>,
    pub(super) copied: Vec<u32>,
    /// Whether each page is mapped in the end.
    mapped: Vec<bool>,
}

impl Life {
    pub(super) fn of(case: &Aged) -> Self {
        let mut random = fastrand::Rng::with_seed(SEED);
        let pages = case.pages();
        let mut folios = |order: u8| {
            let step = 1 << order;
            let mut firsts: Vec<u32> = (0..pages)
                .step_by(step)
                .filter(|page| order_of(page / BLOCK_PAGES, case.mixed) == order)
                .map(|page| page as u32)
                .collect();
            random.shuffle(&mut firsts);
            (Folio { order, pmd: order == 9 }, firsts)
        };
        let populated = [folios(9), folios(4), folios(0)];
        let mut drawn: Vec<u32> = (0..pages as u32)
            .filter(|page| !case.mixed || !(*page as usize / BLOCK_PAGES).is_multiple_of(UNTOUCHED_BLOCK))
            .collect();
        random.shuffle(&mut drawn);
        let dropped = drawn[..drawn.len() / 16].to_vec();
        let copied = drawn[drawn.len() / 16..][..drawn.len() / 8].to_vec();
        let returned = dropped[..dropped.len() / 2].to_vec();
        let mut mapped = vec![true; pages];
        dropped[returned.len()..].iter().for_each(|page| mapped[*page as usize] = false);
        Self { populated, dropped, returned, copied, mapped }
    }

    /// Pages that are mapped in the end.
    pub(super) fn pages(&self) -> u64 {
        self.mapped().count() as u64
    }

    /// Their numbers.
    pub(super) fn mapped(&self) -> impl Iterator<Item = usize> {
        self.mapped.iter().enumerate().filter_map(|(page, mapped)| mapped.then_some(page))
    }

    /// Those that are looked at while the rest of the memory is cold.
    pub(super) fn looked_at(&self) -> impl Iterator<Item = usize> {
        self.mapped().filter(|page| (page / BLOCK_PAGES).is_multiple_of(2))
    }
}

/// The order of the folios that populate a block.
const fn order_of(block: usize, mixed: bool) -> u8 {
    match block % 8 {
        0 if mixed => 9,
        1 | 5 if mixed => 4,
        _ => 0,
    }
}

/// A random half of so many pages of an address space, in random order.
pub(super) fn half_of(space: usize, pages: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..pages as u32).collect();
    fastrand::Rng::with_seed(SEED + space as u64).shuffle(&mut all);
    all.truncate(pages / 2);
    all
}
