//! All TLBs of a processor: which of them an access hits.

use super::processor::{Access, Processor, Size, Tlb};
use super::table::Table;

/// What one entry translates: its address by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) number: u64,
    pub(crate) size: Size,
}

/// The accesses that missed the first level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Data accesses that hit the second level, and those that hit none.
    pub(crate) second: u64,
    pub(crate) walks: u64,
    /// The same of instruction fetches.
    pub(crate) fetch_second: u64,
    pub(crate) fetch_walks: u64,
}

impl Counts {
    /// What was missed since a moment.
    pub(super) const fn since(&self, before: &Self) -> Self {
        Self {
            second: self.second - before.second,
            walks: self.walks - before.walks,
            fetch_second: self.fetch_second - before.fetch_second,
            fetch_walks: self.fetch_walks - before.fetch_walks,
        }
    }
}

/// The TLBs and their contents.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    first: Vec<(Tlb, Table)>,
    second: Vec<(Tlb, Table)>,
    counts: Counts,
}

impl Model {
    /// Empty TLBs.
    pub(crate) fn new(processor: &Processor) -> Self {
        let level = |level: u8| {
            let tlbs = processor.tlbs.iter().filter(|tlb| tlb.level == level);
            tlbs.map(|tlb| (*tlb, Table::new(tlb.entries, tlb.ways))).collect()
        };
        Self { first: level(1), second: level(2), counts: Counts::default() }
    }

    /// Translates an access. A page that no level has is walked for and put into all levels.
    pub(crate) fn access(&mut self, access: Access, page: Page) {
        if touch(&mut self.first, access, page) {
            return;
        }
        let counts = &mut self.counts;
        let count = match (touch(&mut self.second, access, page), access) {
            (true, Access::Fetch) => &mut counts.fetch_second,
            (true, _) => &mut counts.second,
            (false, Access::Fetch) => &mut counts.fetch_walks,
            (false, _) => &mut counts.walks,
        };
        *count += 1;
    }

    /// What the accesses so far have missed.
    pub(crate) const fn counts(&self) -> Counts {
        self.counts
    }
}

/// Touches the page in all TLBs of a level that serve the access. Returns whether one had it.
fn touch(level: &mut [(Tlb, Table)], access: Access, page: Page) -> bool {
    let tag = page.number << 2 | page.size as u64;
    let serving = level.iter_mut().filter(|(tlb, _)| tlb.serves(access, page.size));
    serving.fold(false, |hit, (_, table)| table.touch(page.number, tag) || hit)
}

#[cfg(test)]
mod tests;
