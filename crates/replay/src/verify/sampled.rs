//! How many sampled runs each set has, in which turns they are, and whose the samples are.
//!
//! Chance decides how many samples a run has: between runs of one program under one set their number differs by its root (0.97 and
//! 0.87 times that in the medians of two runs of `results/verify` on an AMD EPYC). A run of a short program has three to twenty, so
//! seven runs together know its time in faults to 8 to 20 %, and an exact prediction would be off by more than 15 % in 12 to 15 of
//! 163 cases. So the runs of each set go on until they should have enough samples.

use std::time::Duration;

use super::fault_time::SAMPLE_NS;
use super::measure::{Runs, order};
use super::unsampled::Faulted;
use crate::calibrate::usual;

/// So many samples tell the mean of the middle half to 4 % (one standard deviation).
const SAMPLES: u64 = 1000;

/// The most runs under a set.
const MOST_RUNS: u32 = 200;

/// Sampled runs end when they have taken so long, and as long as all runs before them.
const TIME: Duration = Duration::from_secs(300);

/// Turns in which the program is recorded again, at most.
const RECORDINGS: u32 = 15;

/// Turns in which a process that only faults is sampled, at most.
const FAULTED: u32 = 40;

/// The sampled runs under a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampled {
    pub(super) runs: u32,
    /// Bytes of whole blocks that are brought in and freed before each run, so that it gets none that the host has taken.
    pub(super) blocks: u64,
}

/// The sampled runs under all sets, in the order of the sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) sets: Vec<Sampled>,
    /// In so many first turns everything comes; they are not cut short.
    pub(super) least: u32,
    /// How long the turns may take.
    pub(super) time: Duration,
}

/// What the samples are of, in the order of time.
#[derive(Clone, Debug)]
pub(super) enum Ran {
    /// A run under the set of this place.
    Set(usize),
    /// The sampled rounds of a process that only faults.
    Faults(Faulted),
}

/// What samples change and miss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sampling {
    /// Nanoseconds of each fault that they do not see.
    pub(super) unsampled_ns: f64,
    /// How many times as long faults take while samples are taken; `None` where that is not known.
    pub(super) longer: Option<f64>,
}

impl Sampling {
    /// The times in faults of runs that have so many nanoseconds of samples, and of which each takes so many faults.
    pub(super) fn times(&self, sampled: &[u64], faults: u64) -> Vec<u64> {
        let unsampled = faults as f64 * self.unsampled_ns;
        let longer = self.longer.unwrap_or(1.0);
        sampled.iter().map(|ns| ((*ns as f64 + unsampled) / longer) as u64).collect()
    }
}

impl Plan {
    /// So many runs under each set if that was asked for, else at least `runs`. `predicted` has the nanoseconds in faults and the
    /// bytes of whole blocks of each set.
    pub(super) fn of(asked: Option<u32>, runs: u32, predicted: impl Iterator<Item = (u64, u64)>) -> Self {
        let enough = |fault_ns: u64| {
            let enough = (SAMPLES * SAMPLE_NS).div_ceil(fault_ns.max(1)).min(MOST_RUNS.into());
            runs.max(enough as u32)
        };
        let set = |(fault_ns, blocks)| Sampled { runs: asked.unwrap_or_else(|| enough(fault_ns)), blocks };
        let time = if asked.is_some() { Duration::MAX } else { TIME };
        Self { sets: predicted.map(set).collect(), least: runs, time }
    }

    /// Whether the runs end after this turn, when they have taken so long, and all runs before them so long.
    pub(super) fn is_over(&self, turn: u32, took: Duration, before: Duration) -> bool {
        turn + 1 >= self.least && took >= self.time.max(before)
    }

    /// Turns until each set has had all of its runs.
    pub(super) fn turns(&self) -> u32 {
        self.sets.iter().map(|set| set.runs).max().unwrap_or(0)
    }

    /// The sets that run in a turn, in a drawn order.
    pub(super) fn order(&self, turn: u32) -> Vec<usize> {
        let runs = |at: &usize| self.is_due(turn, self.sets[*at].runs);
        order(turn, self.sets.len()).into_iter().filter(runs).collect()
    }

    /// Whether the program is recorded before the runs of a turn.
    pub(super) fn records(&self, turn: u32) -> bool {
        self.is_due(turn, RECORDINGS.min(self.turns()))
    }

    /// Whether a process that only faults is sampled after the runs of a turn.
    pub(super) fn faults(&self, turn: u32) -> bool {
        self.is_due(turn, FAULTED.min(self.turns()))
    }

    /// Whether what comes so many times comes in this turn: in each of the least turns, and the rest is spread over the others.
    fn is_due(&self, turn: u32, times: u32) -> bool {
        let least = self.least.min(self.turns());
        if turn < least {
            return turn < times;
        }
        let (rest, turns) = (times.saturating_sub(least), self.turns() - least);
        let until = |turn: u32| (u64::from(turn) * u64::from(rest)).div_ceil(u64::from(turns.max(1)));
        until(turn - least) < until(turn - least + 1)
    }
}

/// Gives the sampled times to what was run. Returns what samples change and miss.
pub(super) fn deal(sampled: Vec<u64>, ran: &[Ran], measured: &mut [Runs]) -> Sampling {
    let mut sampled = sampled.into_iter();
    let (mut unsampled, mut longer) = (Vec::new(), Vec::new());
    for ran in ran {
        match ran {
            Ran::Set(at) => measured[*at].fault_ns.extend(sampled.next()),
            Ran::Faults(faulted) => {
                let ns = sampled.by_ref().take(faulted.rounds.len()).sum();
                unsampled.push(faulted.unsampled_ns(ns));
                longer.extend(faulted.longer());
            }
        }
    }
    let unsampled_ns = if unsampled.is_empty() { 0.0 } else { usual(unsampled).max(0.0) };
    // Samples take time: less than none is chance. That chance only shortens what was measured, and a page says so.
    let longer = (!longer.is_empty()).then(|| usual(longer).max(1.0));
    Sampling { unsampled_ns, longer }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(runs: &[u32]) -> Plan {
        let sets = runs.iter().map(|&runs| Sampled { runs, blocks: 0 }).collect();
        Plan { sets, least: 2, time: Duration::from_secs(9) }
    }

    #[test]
    fn the_least_turns_are_not_cut_short() {
        let over = |turn, took, before| {
            plan(&[9]).is_over(turn, Duration::from_secs(took), Duration::from_secs(before))
        };
        assert!(!over(0, 100, 1), "each set has had one run of two");
        assert!(over(1, 100, 1) && over(8, 9, 9));
        assert!(!over(1, 8, 1) && !over(1, 9, 10), "there is time left");
    }

    #[test]
    fn a_set_has_runs_until_they_should_have_enough_samples() {
        let ms = 1_000_000;
        let predicted = [(50 * ms, 0), (10 * ms, 4 << 20), (ms, 0), (0, 0)];
        let runs = |asked| {
            let plan = Plan::of(asked, 7, predicted.into_iter());
            (plan.sets.iter().map(|set| set.runs).collect::<Vec<_>>(), plan.time)
        };
        assert_eq!(runs(None), (vec![10, 50, MOST_RUNS, MOST_RUNS], TIME));
        assert_eq!(runs(Some(3)), (vec![3; 4], Duration::MAX), "as many as were asked for");
        assert_eq!(Plan::of(None, 60, predicted.into_iter()).sets[1], Sampled { runs: 60, blocks: 4 << 20 });
        assert_eq!(Plan::of(None, 7, std::iter::empty()).turns(), 0);
    }

    /// If the clock changes in the middle, it does so for all sets.
    #[test]
    fn runs_are_spread_over_all_turns() {
        let plan = plan(&[10, 7, 3, 1]);
        assert_eq!(plan.turns(), 10);
        let of = |turns: std::ops::Range<u32>| {
            let mut ran = [0; 4];
            turns.flat_map(|turn| plan.order(turn)).for_each(|at| ran[at] += 1);
            ran
        };
        assert_eq!(of(0..10), [10, 7, 3, 1]);
        assert_eq!(of(0..2), [2, 2, 2, 1], "the least turns have all");
        assert_eq!(of(0..6), [6, 5, 3, 1], "if they end in the middle");
    }

    #[test]
    fn recordings_and_processes_that_fault_are_not_in_all_of_many_turns() {
        let turns = |plan: Plan| {
            let of = |is: fn(&Plan, u32) -> bool| (0..plan.turns()).filter(|&turn| is(&plan, turn)).count();
            [of(Plan::records), of(Plan::faults)]
        };
        assert_eq!(turns(plan(&[2, 1])), [2, 2]);
        assert_eq!(turns(plan(&[20, 40])), [RECORDINGS as usize, FAULTED as usize]);
        assert_eq!(turns(plan(&[200])), [RECORDINGS as usize, FAULTED as usize]);
    }

    #[test]
    fn a_time_in_faults_has_what_samples_do_not_see_and_not_what_they_add() {
        let times = |longer| Sampling { unsampled_ns: 100.0, longer }.times(&[10_000, 500], 20);
        assert_eq!(times(None), [12_000, 2500]);
        assert_eq!(times(Some(1.25)), [9600, 2000]);
    }

    #[test]
    fn sampled_times_go_to_their_runs() {
        let mut measured = vec![Runs::default(); 2];
        // Two rounds of the process that only faults in each of two turns, and the second set in the first turn alone.
        let faulted = |apart: Option<u64>| {
            let mut faulted = Faulted::default();
            faulted.rounds = vec![Default::default(); 2];
            faulted.took = Duration::from_nanos(65_536 * 100 + 1000);
            faulted.apart = apart.map(Duration::from_nanos);
            Ran::Faults(faulted)
        };
        let ran = [Ran::Set(1), Ran::Set(0), faulted(Some(6_240_000)), Ran::Set(0), faulted(None)];
        let sampling = deal(vec![20, 10, 600, 400, 11, 500, 500], &ran, &mut measured);
        assert_eq!((&measured[0].fault_ns[..], &measured[1].fault_ns[..]), (&[10, 11][..], &[20][..]));
        assert_eq!(sampling.unsampled_ns, 100.0);
        assert!((sampling.longer.unwrap() - 6_554_600.0 / 6_240_000.0).abs() < 1e-9, "{sampling:?}");
        let more_than_it_took = deal(vec![600_000_000, 400], &[faulted(Some(7_000_000))], &mut measured);
        assert_eq!(more_than_it_took, Sampling { unsampled_ns: 0.0, longer: Some(1.0) });
        assert_eq!(deal(Vec::new(), &[], &mut measured), Sampling::default());
    }
}
