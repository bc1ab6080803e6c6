//! Which mappings gain and which waste, and a plan that gives folios to some of them alone.

use crate::replay::{Part, PartKind};

use super::case::Case;
use super::objective::{Rule, Score};

/// The gain of one mapping by another set.
#[derive(Clone, Debug)]
pub(super) struct Gain {
    /// Its figures under the other set.
    pub(super) part: Part,
    /// Faults and nanoseconds under the baseline.
    pub(super) faults_before: u64,
    pub(super) ns_before: f64,
    pub(super) ns: f64,
    pub(super) wasted_before: u64,
}

impl Gain {
    /// Nanoseconds that it saves.
    pub(super) fn saved_ns(&self) -> f64 {
        self.ns_before - self.ns
    }

    /// Bytes that it wastes beyond those of the baseline.
    fn wastes(&self) -> u64 {
        self.part.wasted.saturating_sub(self.wasted_before)
    }

    /// Whether a program can ask for folios there.
    fn can_ask(&self) -> bool {
        matches!(self.part.key.kind, PartKind::Heap | PartKind::Anonymous(_) | PartKind::ThreadStacks)
    }
}

/// The gains of all mappings, the largest first.
pub(super) fn gains(baseline: &Case, case: &Case) -> Vec<Gain> {
    let gain = |part: &Part| {
        let before = baseline.part(part);
        Gain {
            faults_before: before.map_or(0, Part::faults),
            ns_before: before.map_or(0.0, |before| baseline.ns(before)),
            wasted_before: before.map_or(0, |before| before.wasted),
            ns: case.ns(part),
            part: part.clone(),
        }
    };
    let mut gains: Vec<Gain> = case.figures.parts.iter().map(gain).collect();
    gains.sort_by(|a, b| b.saved_ns().total_cmp(&a.saved_ns()));
    gains
}

/// The fewest mappings with nine tenths of the gain, three at most, and their share.
pub(super) fn causes(gains: &[Gain]) -> (Vec<&Gain>, f64) {
    let all: f64 = gains.iter().map(Gain::saved_ns).filter(|ns| *ns > 0.0).sum();
    let (mut causes, mut share) = (Vec::new(), 0.0);
    for gain in gains.iter().filter(|gain| gain.saved_ns() > 0.0).take(3) {
        if share >= 0.9 {
            break;
        }
        share += gain.saved_ns() / all;
        causes.push(gain);
    }
    (causes, share)
}

/// One set of sizes for some mappings; the others stay as they are.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) set: crate::replay::FolioSet,
    /// The mappings that ask, the largest gain first.
    pub(super) asking: Vec<Gain>,
    pub(super) score: Score,
}

/// A plan must save this much more than a set for all mappings, as a part of the baseline's time …
const MUCH_BETTER: f64 = 0.1;
/// … and more by this factor.
const MUCH_MORE: f64 = 1.25;
/// Mappings that one plan names: a program cannot ask everywhere.
const MOST: usize = 3;

/// The plan that is best by the rule, if it is much better than `chosen`.
pub(super) fn plan(baseline: &Case, cases: &[Case], chosen: &Score, rule: Rule) -> Option<Plan> {
    // Memory that asks gets what all memory gets too, and what has asked already.
    let has = baseline.set().unrequested().with(baseline.set().requested());
    let others = cases.iter().filter(|case| case.set() != baseline.set() && has.is_within(case.set()));
    let mut plans: Vec<Plan> = others.filter_map(|case| plan_of(baseline, case, rule.most_waste)).collect();
    let scores: Vec<Score> = plans.iter().map(|plan| plan.score).collect();
    let best = plans.swap_remove(rule.choose(&baseline.score, &scores)?);
    let before = baseline.score.time_ns;
    let (own, other) = (before - best.score.time_ns, before - chosen.time_ns);
    (own >= other * MUCH_MORE && own - other >= before * MUCH_BETTER).then_some(best)
}

/// The mappings that gain by the set, those that waste the least for it first, while the waste stays within `most`.
fn plan_of(baseline: &Case, case: &Case, most: f64) -> Option<Plan> {
    let least = baseline.score.time_ns * MUCH_BETTER / MOST as f64;
    let mut useful: Vec<Gain> =
        gains(baseline, case).into_iter().filter(|gain| gain.can_ask() && gain.saved_ns() >= least).collect();
    let worth = |gain: &Gain| gain.saved_ns() / (gain.wastes() + 4096) as f64;
    useful.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    let mut plan = Plan { set: case.set(), asking: Vec::new(), score: baseline.score };
    for gain in useful.into_iter().take(MOST) {
        let before = baseline.part(&gain.part);
        let resident = before.map_or(0, |before| before.resident);
        let score = &plan.score;
        let with = Score {
            sizes: case.score.sizes,
            faults: (score.faults + gain.part.faults()).saturating_sub(gain.faults_before),
            time_ns: score.time_ns - gain.saved_ns(),
            longest_ns: case.score.longest_ns,
            memory: (score.memory + gain.part.resident).saturating_sub(resident),
            wasted: (score.wasted + gain.part.wasted).saturating_sub(gain.wasted_before),
            high: score.high,
        };
        if with.is_within(most) && with.above() <= baseline.score.above() {
            plan.score = with;
            plan.asking.push(gain);
        }
    }
    plan.asking.sort_by(|a, b| b.saved_ns().total_cmp(&a.saved_ns()));
    (!plan.asking.is_empty()).then_some(plan)
}
