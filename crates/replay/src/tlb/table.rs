//! One TLB: sets of a few entries; a set drops the entry that was used longest ago.

/// What it holds, as opaque tags.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// The entries of all sets, those of a set from the last used on.
    entries: Vec<u64>,
    ways: usize,
}

/// No tag: page numbers are far smaller.
const NONE: u64 = u64::MAX;

impl Table {
    /// An empty one. The last set is full even where `entries` are no multiple of `ways`.
    pub(super) fn new(entries: u32, ways: u32) -> Self {
        let ways = ways.clamp(1, entries.max(1)) as usize;
        Self { entries: vec![NONE; (entries as usize / ways).max(1) * ways], ways }
    }

    /// Looks for a tag in the set of this number and makes it the last used. Returns whether it was there.
    pub(super) fn touch(&mut self, number: u64, tag: u64) -> bool {
        let set = (number % (self.entries.len() / self.ways) as u64) as usize;
        let set = &mut self.entries[set * self.ways..][..self.ways];
        let found = set.iter().position(|entry| *entry == tag);
        set[..=found.unwrap_or(self.ways - 1)].rotate_right(1);
        set[0] = tag;
        found.is_some()
    }
}

#[cfg(test)]
mod tests;
