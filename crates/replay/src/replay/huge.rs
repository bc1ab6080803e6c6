//! Memory that a program maps by huge pages of a pool itself (`MAP_HUGETLB`).

use quire::vm::Remap;

use super::verb::Verb;
use crate::trace::{Syscall, huge_bits};

/// The sizes that are told apart, as powers of two: 2 MiB and 1 GiB.
pub(super) const BITS: [u64; 2] = [21, 30];

/// The mappings of huge pages of one address space.
#[derive(Clone, Debug, Default)]
pub(super) struct HugeMaps {
    /// Start, end, and the place of the size in [`BITS`].
    ranges: Vec<(u64, u64, usize)>,
    /// Huge pages by size.
    pages: [u64; BITS.len()],
}

impl HugeMaps {
    /// Huge pages that are mapped, by size.
    pub(super) const fn pages(&self) -> [u64; BITS.len()] {
        self.pages
    }

    pub(super) const fn mappings(&self) -> usize {
        self.ranges.len()
    }

    /// Whether a range has some of their memory.
    pub(super) fn touch(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        self.ranges.iter().any(|(first, until, _)| *first < end && start < *until)
    }

    /// Notes a mapping with these flags.
    pub(super) fn map(&mut self, start: u64, len: u64, flags: u64) {
        let Some(at) = huge_bits(flags).and_then(|bits| BITS.iter().position(|known| *known == bits)) else {
            return;
        };
        self.ranges.push((start, start.saturating_add(len), at));
        self.count();
    }

    /// Notes a call that succeeded.
    pub(super) fn apply(&mut self, call: &Syscall, verb: &Verb) {
        match *verb {
            Verb::Mmap(ref mapping) => {
                self.cut(mapping.addr, mapping.len);
                self.map(mapping.addr, mapping.len, call.args[3]);
            }
            Verb::Munmap { addr, len } => drop(self.cut(addr, len)),
            Verb::Mremap { addr, old, new, to } => {
                let to = match to {
                    Remap::Fixed(to) | Remap::FixedDontUnmap(to) => to.0,
                    _ => addr,
                };
                let moved = self.cut(addr, old);
                self.cut(to, new);
                if let Some(at) = moved {
                    self.ranges.push((to, to.saturating_add(new), at));
                    self.count();
                }
            }
            _ => {}
        }
    }

    /// Removes a range; returns the size of the last mapping that lost some of it.
    fn cut(&mut self, start: u64, len: u64) -> Option<usize> {
        let end = start.saturating_add(len);
        let mut cut = None;
        let kept = self.ranges.drain(..).flat_map(|(first, until, at)| {
            if first < end && start < until {
                cut = Some(at);
            }
            [(first, until.min(start), at), (first.max(end), until, at)]
        });
        self.ranges = kept.filter(|(first, until, _)| first < until).collect();
        self.count();
        cut
    }

    fn count(&mut self) {
        let pages = |size| {
            let of_size = self.ranges.iter().filter(|(.., at)| *at == size);
            of_size.map(|(first, end, _)| (end - first) >> BITS[size]).sum()
        };
        self.pages = std::array::from_fn(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_until_they_are_unmapped() {
        let mut maps = HugeMaps::default();
        maps.map(1 << 30, 8 << 21, 0x4_0022);
        maps.map(4 << 30, 2 << 30, 0x4_0022 | 30 << 26);
        maps.map(8 << 30, 8 << 21, 0x22);
        assert_eq!((maps.pages(), maps.mappings()), ([8, 2], 2), "memory without the flag is none of it");
        // From the middle: two mappings are left.
        assert_eq!(maps.cut((1 << 30) + (2 << 21), 3 << 21), Some(0));
        assert_eq!((maps.pages(), maps.mappings()), ([5, 2], 3));
        assert_eq!(maps.cut(2 << 30, 1 << 21), None);
        assert_eq!(maps.cut(0, u64::MAX), Some(1));
        assert_eq!(maps.pages(), [0, 0]);
    }
}
