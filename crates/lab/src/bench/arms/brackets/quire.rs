//! Quire on a hosted machine, with a guest's second-stage tables that take part in every bracket.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hosted::{Bare, Hosted, HostedConfig, Nested, VirtualCpu, during};
use quire::cpu::CpuId;
use quire::manager::Config;
use quire::vm::Mm;

use super::verbs::{Ground, PART};
use super::{BRACKET, Brackets, EACH, HELD, LONGEST, P99, STALL, Verb};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::ours::{START, ranges};
use crate::bench::stats::Summary;
use crate::host::threads::Pinned;

/// Memory beside the guest's: a second copy of it, page tables, the manager's own.
const SLACK: u64 = 64 << 20;
/// The name under which the brackets of the calls are kept.
const TIMED: &str = "verb";
/// How often a call is repeated when an access to its memory makes it fail.
const TRIES: u64 = 1_000;

pub(super) struct Quire;

impl Arm<Brackets> for Quire {
    fn name(&self) -> &'static str {
        "quire"
    }

    fn about(&self) -> &'static str {
        "one call of the verb on a bare hosted machine, timed from outside: a bracket around the whole verb, \
         as Linux has it, would be open that long. Flushes interrupt the virtual CPU's processor; no system \
         call otherwise."
    }

    fn setup(&mut self, case: &Brackets) -> Result<Box<dyn Prepared + '_>, Skip> {
        let config = HostedConfig::bench(3 * case.bytes + SLACK).with_cpus(2);
        let machine = config.build().map_err(|error| Skip(error.to_string()))?;
        Ok(Box::new(Ready { case: *case, machine }))
    }
}

struct Ready {
    case: Brackets,
    machine: Hosted,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (case, machine) = (self.case, &self.machine);
        // SAFETY: H3: the manager lives inside `run_on` of this machine, as do the threads that use it.
        let bare = unsafe { machine.bare() };
        machine.run_on(CpuId(0), || {
            let manager = hosted::raw::memory_manager(bare, &ranges(machine, false), &Config::default())
                .map_err(|error| Skip(error.to_string()))?;
            if case.verb == Verb::CollapseParts {
                let pages = case.bytes / PART;
                let size = quire::hugetlb::HugeSize::Size2M;
                let grown = manager.resize_huge(size, quire::page_alloc::NodeSet::ALL, pages);
                if grown.after != pages {
                    return Err(Skip(format!("the pool has {} pages of {pages}", grown.after)));
                }
            }
            let ground = Ground::new(machine, &manager, case)?;
            measure(machine, &ground)
        })
    }
}

/// Tells the virtual CPU to stop, even if a call fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn measure(machine: &Hosted, ground: &Ground<'_>) -> Result<Sample, Skip> {
    let (case, mm) = (ground.case, &ground.mm);
    let registered = mm.register_secondary();
    let nested = Nested::new(machine, mm, START, case.bytes, 2);
    nested.keep_bracket_times();
    let (begun, over, accesses) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let calls = std::thread::scope(|scope| {
        scope.spawn(|| {
            let _pinned = Pinned::to(case.touched_on);
            machine.run_on(CpuId(1), || {
                mm.switch_in();
                accesses.store(touch(&nested.cpu(0), (case, mm), &begun, &over), Ordering::Relaxed);
                mm.switch_out();
            });
        });
        let _stop = StopAtEnd(&over);
        while !begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        nested.forget_stats();
        mm.switch_in();
        let calls = call_all(ground, &nested.cpu(1));
        mm.switch_out();
        calls
    });
    let calls = calls?;
    let mut brackets = nested.bracket_times().remove(TIMED).unwrap_or_default();
    brackets.sort_unstable();
    let stats = nested.stats();
    let of_verb = stats.brackets.get(TIMED).copied().unwrap_or_default();
    drop(nested);
    drop(registered);
    let nanoseconds = |time: Duration| time.as_nanos() as f64;
    let at = |share: f64| {
        let last = brackets.len().saturating_sub(1);
        brackets.get((last as f64 * share).round() as usize).copied().map_or(0.0, nanoseconds)
    };
    let median = Summary::of(&calls.each).map_or(0.0, |summary| summary.median);
    Ok(Sample::new(median, calls.each.len() as u64)
        .metric(BRACKET, at(0.5))
        .metric(P99, at(0.99))
        .metric(LONGEST, at(1.0))
        .metric(EACH, brackets.len() as f64 / calls.tries.max(1) as f64)
        .metric(HELD, nanoseconds(of_verb.total) / calls.whole * 100.0)
        .metric(STALL, nanoseconds(stats.longest_stall))
        .count("brackets", of_verb.count)
        .count("calls", calls.each.len() as u64)
        .count("tries", calls.tries)
        .count("copies_dropped", of_verb.dropped)
        .count("dropping_ns", of_verb.dropping.as_nanos() as u64)
        .count("larger_copies", stats.collapses)
        .count("accesses", accesses.load(Ordering::Relaxed)))
}

/// Times of the calls, in nanoseconds.
#[derive(Default)]
struct Calls {
    /// Each call that did its work.
    each: Vec<f64>,
    /// All calls together, with those that an access made fail.
    whole: f64,
    /// Calls, with those that failed.
    tries: u64,
}

/// Makes all calls, each on memory that the second-stage tables map completely.
fn call_all(ground: &Ground<'_>, cpu: &VirtualCpu<'_, '_>) -> Result<Calls, Skip> {
    let case = ground.case;
    let mut calls = Calls::default();
    for call in 0..case.calls {
        let mut tries = 0;
        loop {
            ground.prepare(call)?;
            let (at, len) = ground.part(call);
            let guest = at.0 - START.0;
            for page in (guest..guest + len).step_by(PAGE) {
                let found = if case.verb.reads_only() {
                    cpu.load(&ground.mm, page).map(drop)
                } else {
                    cpu.fetch_add(&ground.mm, page, 1).map(drop)
                };
                found.map_err(|error| Skip::because("the guest's memory", error))?;
            }
            let start = Instant::now();
            let done = during(TIMED, || ground.act(call))?;
            let took = start.elapsed().as_nanos() as f64;
            tries += 1;
            calls.whole += took;
            if done {
                calls.each.push(took);
                break;
            }
            if tries == TRIES {
                return Err(Skip(
                    "the verb found its memory in use each time: run the experiment again".to_owned(),
                ));
            }
        }
        calls.tries += tries;
        ground.restore(call)?;
    }
    Ok(calls)
}

/// Loads and stores at random until `over`; returns the number of accesses. Skips memory that is not mapped.
fn touch(
    cpu: &VirtualCpu<'_, '_>,
    (case, mm): (Brackets, &Mm<'_, Bare>),
    begun: &AtomicBool,
    over: &AtomicBool,
) -> u64 {
    let mut rng = fastrand::Rng::with_seed(case.seed);
    let mut accesses = 0;
    while !over.load(Ordering::Acquire) {
        let at = rng.u64(..case.bytes / PAGE as u64) * PAGE as u64;
        let _done = if case.verb.reads_only() || rng.bool() {
            cpu.load(mm, at).map(drop)
        } else {
            cpu.fetch_add(mm, at, 1).map(drop)
        };
        accesses += 1;
        begun.store(true, Ordering::Release);
    }
    accesses
}
