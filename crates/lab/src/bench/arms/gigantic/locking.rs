//! Each thread locks its part of one of Quire's address spaces in huge pages, in stretches of the case's
//! length, alone or beside a thread that competes for the same processors.

use std::rc::Rc;
use std::time::Instant;

use hosted::Hosted;
use quire::addr::{Order, VirtAddr};
use quire::arch::{ClearKernel, CopyKernel, CpuFeatures};
use quire::clear::{ClearPolicy, Stretch};
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::manager::Config;
use quire::page_alloc::AllocatorConfig;
use quire::vm::{FolioPolicy, Mm};

use super::busy::{self, Busy};
use super::ground::{Shared, all_zero, mark, word, zeroes};
use crate::bench::arms::clear;
use crate::bench::experiment::{Arm, Better, Counters, Metric, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::ours;
use crate::bench::ours::cleared::Cleared;
use crate::bench::ours::scheduled::{Points, Scheduled};
use crate::bench::ours::stretches::{self, Between};
use crate::host::cycles;
use crate::host::threads::Meeting;

/// Nanoseconds for each GiB.
pub const PER_GIB: Metric = Metric { name: "per-GiB", unit: "ns", better: Better::Lower };
/// The longest time between two reschedule points that comes again: for each stretch, the median of three
/// passes over the same memory.
pub const LONGEST: Metric = Metric { name: "longest-stretch", unit: "ns", better: Better::Lower };
/// The longest time between two reschedule points in one pass, with all disturbances.
pub const DISTURBED: Metric = Metric { name: "longest-disturbed", unit: "ns", better: Better::Lower };
/// The longest time between two clock reads of an otherwise idle thread: the time that the machine takes from
/// any thread.
pub const IDLE: Metric = Metric { name: "longest-idle", unit: "ns", better: Better::Lower };
/// The longest time for which a competing thread waited for the processor.
pub const WAITED: Metric = Metric { name: "others-waited", unit: "ns", better: Better::Lower };

/// Passes that read the clock at each reschedule point.
const WATCHED: usize = 3;

/// Lock memory that is not populated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locking {
    /// Bytes of a page: 1 GiB, or 2 MiB in a small run.
    pub page: usize,
    /// Bytes that each thread locks by one call, a multiple of a page.
    pub bytes: usize,
    /// Threads that lock at the same time, in one address space.
    pub threads: usize,
    /// The bytes between two reschedule points; `None`: as the policy chooses.
    pub stretch: Option<Stretch>,
    /// Another thread competes for the same processors.
    pub loaded: bool,
}

impl Locking {
    pub(super) fn total(&self) -> usize {
        self.bytes * self.threads
    }

    /// The sample of this case.
    ///
    /// # Errors
    /// [`Skip`] when not all of it was cleared.
    pub(super) fn sample(&self, nanoseconds: f64, zeroes: u64) -> Result<Sample, Skip> {
        all_zero(zeroes, self.total())?;
        let gib = self.total() as f64 / f64::from(1 << 30);
        let pages = (self.total() / self.page) as u64;
        Ok(Sample::new(nanoseconds, zeroes).metric(PER_GIB, nanoseconds / gib).count("pages", pages))
    }
}

/// How Quire's arms clear.
#[derive(Clone, Copy)]
enum Way {
    /// The measured policy, on pages of a pool of huge pages.
    Pool,
    /// The same policy, on anonymous folios.
    Policy,
    /// The same policy, clearing an anonymous folio of 1 GiB piece by piece.
    OnDemand,
    /// The measured policy, with vector registers saved and restored around each stretch.
    Saving,
    /// As Linux 7.0 clears.
    Contiguous,
    Only(ClearKernel),
}

impl Way {
    fn policy(self, measured: ClearPolicy) -> ClearPolicy {
        match self {
            Self::Pool | Self::Policy | Self::OnDemand | Self::Saving => measured,
            Self::Contiguous => clear::contiguous(),
            Self::Only(kernel) => {
                ClearPolicy::only(kernel, CopyKernel::String).with_stretch(measured.stretch)
            }
        }
    }
}

pub(super) fn all(shared: &Rc<Shared>, swept: bool) -> impl Iterator<Item = Box<dyn Arm<Locking>>> {
    use ClearKernel::{Movnti, Nt16, Nt32, Nt64, String};
    let features = CpuFeatures::detect();
    let streaming =
        [Nt64, Nt32, Nt16].into_iter().find(|kernel| kernel.on(features).is_ok()).unwrap_or(Movnti);
    // Pieces of 2 MiB leave no stretch length to sweep, and Linux' is its own.
    let more: &[Way] = if swept { &[] } else { &[Way::OnDemand, Way::Contiguous, Way::Only(Movnti)] };
    let ways = [Way::Pool, Way::Policy, Way::Saving, Way::Only(String), Way::Only(streaming)].into_iter();
    let ways = ways.chain(more.iter().copied());
    ways.map(|way| Box::new(Ours { way, shared: shared.clone() }) as Box<dyn Arm<Locking>>)
}

struct Ours {
    way: Way,
    shared: Rc<Shared>,
}

impl Arm<Locking> for Ours {
    fn name(&self) -> &'static str {
        match self.way {
            Way::Pool => "quire-pool",
            Way::Policy => "quire",
            Way::OnDemand => "quire-on-demand",
            Way::Saving => "quire-saving",
            Way::Contiguous => "contiguous",
            Way::Only(kernel) => kernel.name(),
        }
    }

    fn about(&self) -> &'static str {
        match self.way {
            Way::Pool => {
                "as `quire`, on pages of a pool that the mapping has reserved, as the published case is: a \
                 fault clears its page in the pool, without the address space's lock."
            }
            Way::Policy => {
                "each thread calls Mm::mlock on a hosted machine with the measured policy. No trap, no \
                 system call, no cgroup."
            }
            Way::OnDemand => {
                "as `quire`, clearing pages of 1 GiB piece by piece, so that a waiter for the address \
                 space's lock waits for one piece at most."
            }
            Way::Saving => {
                "as `quire`, with XSAVE before and XRSTOR after each run that uses vector registers: more than a \
                 kernel pays that restores them only when it returns to the program."
            }
            Way::Contiguous => clear::CONTIGUOUS_ABOUT,
            Way::Only(ClearKernel::Movnti) => {
                "as `quire`, by non-temporal stores without vector registers only."
            }
            Way::Only(ClearKernel::String) => "as `quire`, by string stores only, as Linux clears.",
            Way::Only(_) => "as `quire`, by these non-temporal stores only, with a fence after each stretch.",
        }
    }

    fn setup(&mut self, case: &Locking) -> Result<Box<dyn Prepared + '_>, Skip> {
        if self.shared.processors.len() < case.threads {
            return Err(Skip(format!("this machine has fewer processors than {} threads", case.threads)));
        }
        let order = Order::new((case.page / PAGE).ilog2() as u8).ok_or_else(|| {
            Skip(
                "the allocator has no folio of \
             that size"
                    .to_owned(),
            )
        })?;
        let pool = ours::pool_of(case.page).filter(|_| matches!(self.way, Way::Pool));
        let policy = self.way.policy(self.shared.policy);
        let policy = case.stretch.map_or(policy, |stretch| policy.with_stretch(stretch));
        let config = Config {
            folios: FolioPolicy::only(order).with_on_demand(matches!(self.way, Way::OnDemand)),
            allocator: AllocatorConfig {
                clear: Some(policy),
                zeroes: ours::zeroes_for(pool),
                ..AllocatorConfig::default()
            },
            ..Config::default()
        };
        let machine = self.shared.machine(case.total(), case.page)?;
        let (processors, saves) = (&self.shared.processors, matches!(self.way, Way::Saving));
        Ok(Box::new(Ready { case: *case, processors, machine, config, pool, saves }))
    }
}

struct Ready<'a> {
    case: Locking,
    processors: &'a [usize],
    machine: Rc<Hosted>,
    config: Config,
    pool: Option<HugeSize>,
    saves: bool,
}

struct Pass {
    nanoseconds: f64,
    zeroes: u64,
    stretches: Vec<Between>,
    points: u64,
    /// The longest wait of a busy thread; 0 without one.
    others_waited: f64,
    /// What was cleared, as counts.
    cleared: Counters,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        if self.case.loaded {
            let pass = self.pass(Points::Shared)?;
            let sample = self.case.sample(pass.nanoseconds, pass.zeroes)?.counts(pass.cleared);
            return Ok(sample.metric(WAITED, pass.others_waited));
        }
        let pass = self.pass(Points::Idle)?;
        // Reading the clock at each point would be most of the time where points are close together.
        let watched = (0..WATCHED).map(|_| self.pass(Points::Watched)).collect::<Result<Vec<_>, _>>()?;
        let points = watched[0].points;
        let passes: Vec<_> = watched.into_iter().map(|pass| pass.stretches).collect();
        let sample = self.case.sample(pass.nanoseconds, pass.zeroes)?.counts(pass.cleared);
        let sample = sample.metric(LONGEST, stretches::longest_again(&passes).unwrap_or_default());
        let sample = sample.metric(DISTURBED, stretches::longest(&passes[0]).unwrap_or_default());
        Ok(sample.metric(IDLE, longest_idle(pass.nanoseconds)).count("points", points))
    }
}

/// The longest time between two clock reads over so much time, in nanoseconds.
fn longest_idle(nanoseconds: f64) -> f64 {
    let begun = cycles::now();
    let (mut before, mut longest) = (begun, 0);
    while cycles::to_nanoseconds(before.saturating_sub(begun) as f64) < nanoseconds {
        let now = cycles::now();
        longest = longest.max(now.saturating_sub(before));
        before = now;
    }
    cycles::to_nanoseconds(longest as f64)
}

impl Ready<'_> {
    /// Locks everything once, on a fresh machine.
    fn pass(&self, points: Points) -> Result<Pass, Skip> {
        let (case, machine) = (self.case, &*self.machine);
        let said = |error: &dyn std::fmt::Display| Skip(error.to_string());
        mark(machine);
        machine.run_on(CpuId(0), || {
            // SAFETY: H3: the manager lives inside `run_on`, and the threads that get it are CPUs of this machine.
            let scheduled = Scheduled::on(unsafe { machine.bare() }, points).with_saved_vectors(self.saves);
            let manager =
                hosted::raw::memory_manager(&scheduled, &ours::ranges(machine, false), &self.config)
                    .map_err(|error| said(&error))?;
            let mut cleared = Cleared::begin(machine);
            if let Some(size) = self.pool {
                ours::fill_pool(&manager, size, (case.total() / case.page) as u64)?;
            }
            cleared.before_use(machine);
            // Filling a pool passes points too.
            let before = scheduled.passed();
            let mm = manager.new_mm().map_err(|error| said(&error))?;
            ours::map_from(&mm, case.total(), self.pool)?;
            // Started last, since it would wait for what is set up, too.
            let busy = case.loaded.then(|| Busy::on(&self.processors[..case.threads]));
            let meeting = Meeting::of(case.threads);
            let spans = machine.spawn_pinned_cpus(case.threads, self.processors, |cpu| {
                lock(case, &scheduled, &mm, cpu, &meeting)
            });
            let others_waited = busy.map_or(0.0, |busy| busy.waited());
            let spans = spans.into_iter().collect::<Result<Vec<_>, Skip>>()?;
            // Read before any other code passes a point.
            let (stretches, points) = (scheduled.stretches(), scheduled.passed() - before);
            mm.switch_in();
            let start = |at: usize| ours::START.add(at as u64);
            let zeroes = zeroes(0, case.total(), |at| word(machine, start(at)));
            let cleared = cleared.counts(machine, mm.root());
            ours::unmap(&mm, case.total())?;
            mm.switch_out();
            mm.exit();
            let nanoseconds = busy::length(&spans);
            Ok(Pass { nanoseconds, zeroes, stretches, points, others_waited, cleared })
        })
    }
}

/// Locks the part of one CPU; returns start and end.
fn lock(
    case: Locking,
    scheduled: &Scheduled<'_>,
    mm: &Mm<'_, Scheduled<'_>>,
    cpu: CpuId,
    meeting: &Meeting,
) -> Result<(Instant, Instant), Skip> {
    mm.switch_in();
    let start: VirtAddr = ours::START.add((cpu.index() * case.bytes) as u64);
    meeting.wait();
    scheduled.begin_anew();
    let begun = Instant::now();
    let done = mm.mlock(start, case.bytes as u64, false);
    let ended = Instant::now();
    scheduled.end();
    mm.switch_out();
    done.map(|()| (begun, ended)).map_err(|error| Skip(format!("mlock: {error}")))
}
