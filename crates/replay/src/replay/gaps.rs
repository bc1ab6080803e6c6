//! How long a thread works between two faults.
//!
//! A fault takes longer the more the program has done since the one before, since the kernel's code and data leave the caches
//! meanwhile. In a recording of `sqlite3` on an AMD EPYC one of a page of zeroes took 3 us after 1 to 4 us, 5 us after 64 us and 10
//! us after half a millisecond. Larger folios save faults, so those that are left are farther apart.

use std::collections::HashMap;

use quire::vm::FaultKind;

use super::costs::Series;

/// Powers of two of nanoseconds; the last class has all longer gaps.
pub(crate) const CLASSES: usize = 21;
const KINDS: usize = FaultKind::NAMES.len();

/// With fewer recorded faults, or a smaller part of all, a class tells nothing of the others: in a short program, the faults after
/// long gaps are those of its start, which take longer for other reasons.
const FEW: u64 = 32;
const PART: u64 = 50;

/// Faults by the gap before them.
pub(crate) type ByGap = [u64; CLASSES];

/// The gaps of one replay.
#[derive(Clone)]
pub(super) struct Gaps {
    threads: HashMap<u32, Since>,
    /// Recorded times of faults that bring in a page of zeroes, by the recorded gap.
    times: Vec<Series>,
    recorded: [ByGap; KINDS],
    left: [ByGap; KINDS],
}

/// A thread since its last fault.
#[derive(Clone, Copy, Default)]
struct Since {
    /// The end of the last recorded one.
    recorded_ns: u64,
    /// The end of the last one that the replay took.
    left_ns: u64,
    /// What recorded ones took since then.
    saved_ns: u64,
}

/// What the gaps of a replay tell.
#[derive(Clone, Debug)]
pub(crate) struct GapFigures {
    /// The time of a fault that brings in a page of zeroes, by the gap before it, as a part of that of all; empty where nothing
    /// tells.
    pub(crate) parts: Vec<f64>,
    /// Faults that the replay took, by kind and by the gap before them in the recording.
    pub(crate) recorded: [ByGap; KINDS],
    /// The same by the gap that is there without the others.
    pub(crate) left: [ByGap; KINDS],
}

impl Gaps {
    pub(super) fn new() -> Self {
        let (recorded, left) = ([[0; CLASSES]; KINDS], [[0; CLASSES]; KINDS]);
        Self { threads: HashMap::new(), times: vec![Series::new(); CLASSES], recorded, left }
    }

    /// A recorded fault that ended at `end_ns`; `kind` if the replay took it.
    pub(super) fn fault(&mut self, tid: u32, end_ns: u64, duration_ns: u64, kind: Option<FaultKind>) {
        let since = self.threads.entry(tid).or_default();
        let begin_ns = end_ns.saturating_sub(duration_ns);
        let recorded = class(begin_ns.saturating_sub(since.recorded_ns));
        let left = class(begin_ns.saturating_sub(since.left_ns).saturating_sub(since.saved_ns));
        since.recorded_ns = end_ns;
        match kind {
            Some(kind) => {
                (since.left_ns, since.saved_ns) = (end_ns, 0);
                self.recorded[kind as usize][recorded] += 1;
                self.left[kind as usize][left] += 1;
            }
            None => since.saved_ns = since.saved_ns.saturating_add(duration_ns),
        }
        if kind == Some(FaultKind::Anon) {
            self.times[recorded].add(duration_ns);
        }
    }

    /// What they tell, where a fault that brings in a page of zeroes takes `usual_ns`.
    pub(super) fn figures(&self, usual_ns: Option<u64>) -> GapFigures {
        let enough = FEW.max(self.times.iter().map(Series::count).sum::<u64>() / PART);
        let known = |series: &Series| series.usual().filter(|_| series.count() >= enough);
        let first = self.times.iter().find_map(known);
        let parts = first.zip(usual_ns.filter(|ns| *ns > 0)).map(|(first, usual)| {
            let mut last = first;
            let mut part = |series: &Series| {
                last = known(series).unwrap_or(last);
                last as f64 / usual as f64
            };
            self.times.iter().map(&mut part).collect()
        });
        GapFigures { parts: parts.unwrap_or_default(), recorded: self.recorded, left: self.left }
    }
}

fn class(ns: u64) -> usize {
    (ns.checked_ilog2().unwrap_or(0) as usize).min(CLASSES - 1)
}

impl GapFigures {
    /// How much longer a fault of this kind takes because others are missing, as a part of the time of one that brings in a
    /// page of zeroes. `parts` are those of a replay that misses none.
    pub(crate) fn longer(&self, kind: usize, parts: &[f64]) -> f64 {
        let count: u64 = self.left[kind].iter().sum();
        let of = |gaps: &ByGap| gaps.iter().zip(parts).map(|(count, part)| *count as f64 * part).sum::<f64>();
        if count == 0 { 0.0 } else { (of(&self.left[kind]) - of(&self.recorded[kind])) / count as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANON: usize = FaultKind::Anon as usize;

    /// Pairs of faults: 1 us after 1 ms of work, then 100 ns after 1 us.
    fn pairs(taken: impl Fn(u64) -> bool) -> Gaps {
        let mut gaps = Gaps::new();
        let mut now = 10_000_000;
        for fault in 0..80 {
            let (gap, duration) = if fault % 2 == 0 { (1 << 20, 1000) } else { (1000, 100) };
            now += gap + duration;
            gaps.fault(7, now, duration, taken(fault).then_some(FaultKind::Anon));
        }
        gaps
    }

    #[test]
    fn faults_that_are_left_take_what_faults_after_such_a_gap_took() {
        let all = pairs(|_| true).figures(Some(550));
        assert_eq!(all.longer(ANON, &all.parts), 0.0, "none is missing");
        let first = pairs(|fault| fault % 2 == 0).figures(Some(1000));
        assert_eq!(first.longer(ANON, &all.parts), 0.0, "those before which nothing is missing");
        let second = pairs(|fault| fault % 2 == 1).figures(Some(100));
        let longer = second.longer(ANON, &all.parts) * 550.0;
        assert!((longer - 900.0).abs() < 2.0, "they come after a millisecond now: {longer}");
        assert_eq!(second.longer(FaultKind::Cow as usize, &all.parts), 0.0, "there is none");
    }

    #[test]
    fn what_missing_faults_took_is_no_gap() {
        let mut gaps = Gaps::new();
        let mut now = 1 << 30;
        for fault in 0..100 {
            // 10 us of work, and a fault of 1 ms.
            now += 10_000 + 1_000_000;
            gaps.fault(7, now, 1_000_000, (fault % 50 == 49).then_some(FaultKind::Anon));
        }
        let left = gaps.figures(None).left[ANON];
        assert_eq!(left[class(50 * 10_000)], 1, "{left:?}");
    }

    #[test]
    fn a_few_faults_tell_nothing() {
        let mut gaps = Gaps::new();
        gaps.fault(7, 1000, 100, Some(FaultKind::Anon));
        assert!(gaps.figures(Some(100)).parts.is_empty());
        let mut now = 1000;
        for fault in 0..10_000 {
            // The first hundred are those of a start: slow, and far apart.
            let (gap, duration) = if fault < 100 { (1 << 19, 9000) } else { (1000, 100) };
            now += gap + duration;
            gaps.fault(7, now, duration, Some(FaultKind::Anon));
        }
        assert!(gaps.figures(Some(100)).parts.iter().all(|part| *part == 1.0));
    }
}
