//! Accesses by address and time, as DAMON saw them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::super::error::ReplayError;
use super::super::timeline::STEPS;
use super::super::verb::PAGE;
use super::{ROW, Row, joined};
use crate::trace::{Accesses, EventKind, Layouts, TraceReader};

/// Blocks of a process at most: beyond that they are joined. A mapping of terabytes counts as accessed too if a look found one
/// page of it.
const MOST_BLOCKS: usize = 4096;

type Steps = [f64; STEPS as usize];

/// The process of which most is accessed, and its rows: pages from one look to the next, in the mean of each step.
/// `None` if the trace has no accesses.
///
/// # Errors
/// As those of the reader.
pub(super) fn rows(path: &Path, span_ns: (u64, u64)) -> Result<Option<(u32, Vec<Row>)>, ReplayError> {
    let mut all: HashMap<u32, Watched> = HashMap::new();
    let mut layouts = Layouts::default();
    for event in TraceReader::open(path)? {
        let event = event?;
        match &event.kind {
            EventKind::Accesses(accesses) => {
                let watched = all.entry(event.pid).or_default();
                watched.take(accesses, &layouts, event.pid, (event.time_ns, span_ns));
            }
            _ => layouts.apply(&event),
        }
    }
    let most = all.into_iter().max_by(|(pid, watched), (other, than)| {
        watched.accessed.total_cmp(&than.accessed).then_with(|| other.cmp(pid))
    });
    Ok(most.map(|(pid, watched)| (pid, watched.rows())))
}

/// What is known of a process.
struct Watched {
    /// Bytes of a block.
    block: u64,
    /// Of each block the accessed bytes, times the nanoseconds of their intervals, by step.
    blocks: BTreeMap<u64, Steps>,
    /// Nanoseconds of all intervals, by step.
    seen: Steps,
    /// The end of the last interval.
    last_ns: u64,
    /// Bytes times nanoseconds.
    accessed: f64,
}

impl Default for Watched {
    fn default() -> Self {
        let (blocks, seen) = (BTreeMap::new(), [0.0; STEPS as usize]);
        Self { block: ROW, blocks, seen, last_ns: 0, accessed: 0.0 }
    }
}

impl Watched {
    /// Takes an interval that ends now.
    fn take(
        &mut self,
        accesses: &Accesses,
        layouts: &Layouts,
        pid: u32,
        (end_ns, span_ns): (u64, (u64, u64)),
    ) {
        let asked_ns = accesses.sample_ns.saturating_mul(accesses.samples.into());
        // A busy kernel looks less often than it is asked to; but behind a pause an interval is no longer.
        let begin_ns = end_ns.saturating_sub(asked_ns.saturating_mul(4)).max(self.last_ns);
        let begin_ns = if self.last_ns == 0 { end_ns.saturating_sub(asked_ns) } else { begin_ns };
        self.last_ns = end_ns;
        let times = overlaps((begin_ns, end_ns), span_ns);
        self.seen.iter_mut().zip(times).for_each(|(seen, time)| *seen += time);
        for (part, share) in layouts.accessed(pid, accesses) {
            self.add((part.start, part.end), share, &times);
        }
    }

    fn add(&mut self, (mut start, end): (u64, u64), share: f64, times: &Steps) {
        self.accessed += (end - start) as f64 * share * times.iter().sum::<f64>();
        while self.blocks.len() > MOST_BLOCKS || (end - start) / self.block > MOST_BLOCKS as u64 / 4 {
            self.block *= 2;
            for (block, steps) in std::mem::take(&mut self.blocks) {
                let into = self.blocks.entry(block / 2).or_insert([0.0; STEPS as usize]);
                into.iter_mut().zip(steps).for_each(|(into, step)| *into += step);
            }
        }
        while start < end {
            let block = start / self.block;
            let next = block.saturating_add(1).saturating_mul(self.block).min(end);
            let bytes = (next - start) as f64 * share;
            let steps = self.blocks.entry(block).or_insert([0.0; STEPS as usize]);
            steps.iter_mut().zip(times).for_each(|(step, time)| *step += bytes * time);
            start = next;
        }
    }

    fn rows(self) -> Vec<Row> {
        let Self { block: size, blocks, seen, .. } = self;
        let row = |(block, steps): (u64, Steps)| {
            let mean = |(sum, time): (f64, f64)| if time > 0.0 { sum / time / PAGE as f64 } else { 0.0 };
            let pages = steps.into_iter().zip(seen).map(|step| mean(step).ceil() as u64).collect();
            Row { start: block * size, end: (block + 1).saturating_mul(size), pages }
        };
        joined(&blocks.into_iter().map(row).collect::<Vec<_>>())
    }
}

/// Nanoseconds of an interval in each step of the recorded time.
fn overlaps((begin_ns, end_ns): (u64, u64), (first_ns, last_ns): (u64, u64)) -> Steps {
    let step_ns = ((last_ns - first_ns) as f64 + 1.0) / STEPS as f64;
    let (begin, end) =
        (begin_ns.saturating_sub(first_ns) as f64, end_ns.saturating_sub(first_ns) as f64 + 1.0);
    std::array::from_fn(|step| {
        let from = step as f64 * step_ns;
        (end.min(from + step_ns) - begin.max(from)).max(0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_counts_in_the_steps_that_it_overlaps() {
        let steps = overlaps((10, 29), (0, 479));
        assert_eq!(steps[..4], [0.0, 10.0, 10.0, 0.0]);
        assert_eq!(overlaps((0, 479), (0, 479)), [10.0; STEPS as usize]);
    }

    /// Of terabytes that are one mapping few blocks are kept.
    #[test]
    fn blocks_are_few_and_lose_nothing() {
        let mut watched = Watched::default();
        let times = overlaps((0, 479), (0, 479));
        watched.seen = times;
        watched.add((0, 2 * ROW), 0.5, &times);
        watched.add((1 << 40, 1 << 43), 1.0, &times);
        assert!(watched.blocks.len() < MOST_BLOCKS, "{}", watched.blocks.len());
        let rows = watched.rows();
        assert_eq!(rows[0].start, 0);
        let pages: u64 = rows.iter().map(|row| row.pages[0]).sum();
        assert_eq!(pages, (ROW + (1 << 43) - (1 << 40)) / PAGE);
    }
}
