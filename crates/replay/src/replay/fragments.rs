//! A machine whose free memory is in pieces when the replay starts.

use hosted::Hosted;
use quire::addr::{Frame, FrameRange, Order};
use quire::limits::BLOCK_SIZE;
use quire::manager::MemoryManager;

/// The share of free memory that is free in pieces of each order below 2 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fragments {
    shares: [f64; Order::BLOCK.get() as usize],
}

impl Fragments {
    /// Equally much in pieces of each order, so large a share in all.
    pub(crate) fn even(share: f64) -> Self {
        let orders = f64::from(Order::BLOCK.get());
        Self { shares: [share / orders; Order::BLOCK.get() as usize] }
    }

    /// As `/proc/buddyinfo` says: how many pieces of each order are free in each zone. `None` if it says nothing.
    pub(crate) fn of(buddyinfo: &str) -> Option<Self> {
        let mut pages = [0u64; 16];
        for line in buddyinfo.lines() {
            // Behind the name of the zone, one number for each order.
            let (_, zone) = line.split_once(", zone")?;
            for (order, pieces) in zone.split_whitespace().skip(1).take(pages.len()).enumerate() {
                pages[order] += pieces.parse::<u64>().ok()?.checked_shl(order as u32)?;
            }
        }
        let all: u64 = pages.iter().sum();
        let share = |order: usize| pages[order] as f64 / all as f64;
        (all > 0).then(|| Self { shares: std::array::from_fn(share) })
    }

    /// The share in pieces of each order, small to large.
    pub(crate) const fn by_order(&self) -> &[f64] {
        &self.shares
    }

    /// The share in pieces below 2 MiB.
    pub(crate) fn share(&self) -> f64 {
        self.shares.iter().sum()
    }

    /// Bytes of a machine that has so many free ones: beside each free piece one is in use.
    pub(super) fn machine(&self, free: u64) -> u64 {
        let held = (free as f64 * self.share()) as u64;
        free.saturating_add(held).checked_next_multiple_of(BLOCK_SIZE).unwrap_or(u64::MAX)
    }

    /// Allocates every other piece of some blocks for good; returns how many frames. The machine has `bytes`.
    pub(super) fn hold(&self, manager: &MemoryManager<'_, Hosted>, machine: &Hosted, bytes: u64) -> u64 {
        let free = bytes as f64 / (1.0 + self.share());
        let mut blocks = machine.ranges().iter().flat_map(|range| {
            let first = range.start.frame().0;
            (first..first + range.bytes / 4096).step_by(Order::BLOCK.frames() as usize)
        });
        let (mut held, mut share, mut cut) = (0, 0.0, 0);
        for (order, more) in (0..).zip(self.shares) {
            let piece = 1u64 << order;
            share += more;
            // Half of a block stays free. Rounding the sum loses no block.
            let wanted = (free * share / BLOCK_SIZE as f64 * 2.0).round() as u64;
            while cut < wanted {
                let Some(block) = blocks.next() else { return held };
                let places = (block..block + Order::BLOCK.frames()).step_by(2 * piece as usize);
                let taken: u64 = places.map(|at| hold(manager, at, piece)).sum();
                held += taken;
                // What the manager uses itself is in no free block.
                cut += u64::from(taken > 0);
            }
        }
        held
    }
}

/// Allocates one piece, if it is free; returns its frames.
fn hold(manager: &MemoryManager<'_, Hosted>, at: u64, frames: u64) -> u64 {
    match manager.pages().alloc_at(FrameRange::new(Frame(at), frames)) {
        // It stays allocated to the end of the replay.
        Ok(run) => run.into_raw().count,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_all_zones() {
        let two = "Node 0, zone      DMA      0      2      0      0      0      0      0      0      0      0      1 \n\
                   Node 0, zone   Normal   1020      0      0      0      0      0      0      0      0      2      0 \n";
        let fragments = Fragments::of(two).expect("two zones");
        // 4 pages of 8 KiB, 1020 of 4 KiB, one block of 4 MiB and two of 2 MiB.
        assert_eq!(fragments.by_order()[..3], [1020.0 / 3072.0, 4.0 / 3072.0, 0.0]);
        assert!((fragments.share() - 1.0 / 3.0).abs() < 1e-9, "{fragments:?}");
        assert_eq!(fragments.machine(3 << 30), 4 << 30);
        assert_eq!((Fragments::of(""), Fragments::of("no such thing\n")), (None, None));
        assert!((Fragments::even(0.9).share() - 0.9).abs() < 1e-9);
    }
}
