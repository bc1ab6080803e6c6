//! Measures what an access takes longer that misses the TLBs: the walk through the page tables.

use std::time::Instant;

use memmap2::{Advice, MmapMut, MmapOptions};

/// The size of a huge page, which needs one entry where single pages need 512.
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;
/// A multiple of what TLBs hold in single pages, a fraction of it in huge ones. The lines and the page tables take 1.1 MiB, so
/// that most second-level caches hold them from pass to pass.
const PAGES: usize = 16 << 10;
const PASSES: usize = 50;

/// Nanoseconds of a walk: a chase through one line of each page, in memory of single pages and in memory of huge ones. The
/// lines have the same places in both, so that caches hold the same of them. `None` if huge pages cannot be had.
pub(crate) fn walk_ns() -> Option<f64> {
    let chase = Chase::new();
    let single = chase.memory(Advice::NoHugePage)?;
    let huge = chase.memory(Advice::HugePage).filter(|memory| is_huge(memory, PAGES * PAGE))?;
    // Other work on the machine only adds time.
    let least = |memory: &MmapMut| (0..PASSES).map(|_| chase.run(memory)).fold(f64::MAX, f64::min);
    Some((least(&single) - least(&huge)).max(0.0))
}

/// A way through all pages.
struct Chase {
    /// Each page's number in the order in which they are visited.
    order: Vec<u32>,
}

impl Chase {
    fn new() -> Self {
        let mut order: Vec<u32> = (0..PAGES as u32).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        Self { order }
    }

    /// Memory in which each visited line names the next.
    fn memory(&self, advice: Advice) -> Option<MmapMut> {
        let mut memory = MmapOptions::new().len(PAGES * PAGE + HUGE).map_anon().ok()?;
        memory.advise(advice).ok()?;
        let next = self.order.iter().skip(1).chain(self.order.first());
        let first = first(&memory);
        for (page, next) in self.order.iter().zip(next) {
            let at = first + place(*page);
            memory[at..at + 4].copy_from_slice(&next.to_ne_bytes());
        }
        Some(memory)
    }

    /// Nanoseconds of a visit.
    fn run(&self, memory: &MmapMut) -> f64 {
        let memory = &memory[first(memory)..];
        let mut page = self.order[0];
        let start = Instant::now();
        for _ in 0..PAGES {
            let at = place(page);
            page = memory[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        }
        let ns = start.elapsed().as_nanos() as f64;
        assert_eq!(page, self.order[0], "the way is a circle");
        ns / PAGES as f64
    }
}

fn first(memory: &MmapMut) -> usize {
    memory.as_ptr().align_offset(HUGE)
}

/// The visited line of a page: another one in each, so that the lines spread over the sets of a cache.
const fn place(page: u32) -> usize {
    let page = page as usize;
    page * PAGE + (page * 37 % 64) * 64
}

/// Whether so many bytes of the memory have huge pages.
pub(super) fn is_huge(memory: &MmapMut, bytes: usize) -> bool {
    let start = memory.as_ptr() as u64;
    let smaps = procfs::process::Process::myself().and_then(|process| process.smaps());
    let maps = smaps.ok().into_iter().flatten();
    let mut around = maps.filter(|map| map.address.0 <= start && start < map.address.1);
    let huge = around.next().and_then(|map| map.extension.map.get("AnonHugePages").copied());
    huge.is_some_and(|found| found >= bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_visited_once() {
        let chase = Chase::new();
        let memory = chase.memory(Advice::NoHugePage).expect("memory");
        assert!(!is_huge(&memory, PAGES * PAGE));
        assert!(chase.run(&memory) > 0.0);
        let places: std::collections::BTreeSet<usize> = (0..PAGES as u32).map(place).collect();
        assert_eq!(places.len(), PAGES);
        assert!(places.iter().all(|at| at + 4 <= PAGES * PAGE));
        let sets: std::collections::BTreeSet<usize> = places.iter().map(|at| at / 64 % 64).collect();
        assert_eq!(sets.len(), 64);
    }
}
