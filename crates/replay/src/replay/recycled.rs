//! Frames that were freed a moment ago.
//!
//! Linux hands out first what was freed last. Memory that a program gives back and takes again, as an allocator does at the end
//! of the heap, is in the caches still: on an Intel Xeon a fault of 16 KiB took 1 us longer than one of 4 KiB where both took such
//! memory, and 3 us longer where it came from far away. The recorded faults of 4 KiB tell how long such ones take; of larger folios
//! `quire calibrate --kernel` measures both.

use super::pages::ORDERS;

/// How long a frame stays in the caches. The last one holds what a program reads and writes in such a time.
const MOMENT_NS: u64 = 1_000_000;

/// More do not fit into the caches before the last one.
const MOST_FRAMES: u64 = 256;

/// The frames that were freed last, and what became of such.
#[derive(Clone, Debug, Default)]
pub(super) struct Recycled {
    frames: u64,
    freed_ns: u64,
    /// Frames that folios of zeroes took from them, by order.
    taken: [u64; ORDERS],
}

impl Recycled {
    /// So many frames were freed.
    pub(super) fn freed(&mut self, now_ns: u64, frames: u64) {
        if frames > 0 {
            self.frames = (self.fresh(now_ns) + frames).min(MOST_FRAMES);
            self.freed_ns = now_ns;
        }
    }

    /// A fault has brought in a folio of this order, of zeroes or as a copy.
    pub(super) fn taken(&mut self, now_ns: u64, order: usize, zeroes: bool) {
        let taken = self.fresh(now_ns).min(1 << order);
        self.frames -= taken;
        if zeroes {
            self.taken[order] += taken;
        }
    }

    /// Frames of folios of zeroes that faults took a moment after they had been freed, by order.
    pub(super) const fn by_order(&self) -> [u64; ORDERS] {
        self.taken
    }

    /// Those that are in the caches still.
    fn fresh(&mut self, now_ns: u64) -> u64 {
        if now_ns.saturating_sub(self.freed_ns) > MOMENT_NS {
            self.frames = 0;
        }
        self.frames
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::policy::FolioSet;
    use super::super::trial::Trial;
    use super::*;

    #[test]
    fn a_fault_takes_what_was_freed_last() {
        let mut recycled = Recycled::default();
        recycled.taken(0, 2, true);
        recycled.freed(1000, 20);
        recycled.freed(1500, 0);
        recycled.taken(2000, 0, true);
        recycled.taken(2000, 1, false);
        recycled.taken(2000, 4, true);
        recycled.taken(2000, 4, true);
        let mut taken = [0; ORDERS];
        (taken[0], taken[4]) = (1, 16 + 1);
        assert_eq!(recycled.by_order(), taken);
    }

    #[test]
    fn frames_leave_the_caches() {
        let mut recycled = Recycled::default();
        recycled.freed(0, 10_000);
        recycled.taken(MOMENT_NS, 9, true);
        assert_eq!(recycled.by_order()[9], MOST_FRAMES, "more than that do not fit");
        recycled.freed(MOMENT_NS, 100);
        recycled.taken(2 * MOMENT_NS + 1, 0, true);
        assert_eq!(recycled.by_order()[0], 0, "too late");
        recycled.freed(3 * MOMENT_NS, 1);
        recycled.taken(3 * MOMENT_NS, 3, true);
        assert_eq!(recycled.by_order()[3], 1, "the hundred of before are gone");
    }

    #[test]
    fn a_script_that_forks_takes_what_its_children_gave_back() {
        let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/forks.qtrace");
        let sets = [FolioSet::FRAMES, FolioSet::FRAMES.and(2)];
        let replayed = Trial::open(&trace, None).unwrap().replay(&sets).unwrap().0;
        for figures in &replayed {
            let recycled = figures.recycled.iter().sum::<u64>();
            let frames: u64 = figures.folios.iter().zip(0..).map(|(count, order)| count << order).sum();
            assert!(recycled > frames / 20 && recycled < frames, "{recycled} of {frames}");
        }
    }
}
