//! Populates memory by large pages: Quire's, the running kernel's huge pages, and its transparent ones.

use std::rc::Rc;
use std::time::Instant;

use hosted::Hosted;
use quire::addr::{FrameRange, Order};
use quire::clear::ClearPolicy;
use quire::hugetlb::HugeSize;
use quire::manager::Config;
use quire::page_alloc::AllocatorConfig;
use quire::vm::{Advice, FolioPolicy};
use rustix::mm::Advice as Linux;

use super::fill::rate;
use super::grounds::{mark, zero_pages};
use super::huge::{Chooser, Pool};
use super::raw::{Machines, Raw};
use super::way::{RATE, Setting, contiguous, kernels};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::linux::populate::verify;
use crate::bench::ours;
use crate::bench::ours::cleared::Cleared;
use crate::host::threads::{Meeting, together};

/// Populate memory by pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Populating {
    /// Bytes of a page: 2 MiB or 1 GiB.
    pub page: usize,
    /// Bytes that each thread populates, by one call.
    pub bytes: usize,
    /// Threads that do so at once, in one address space.
    pub threads: usize,
}

impl Populating {
    pub(super) fn total(&self) -> usize {
        self.bytes * self.threads
    }

    pub(super) fn sample(&self, nanoseconds: f64, pages: u64) -> Sample {
        Sample::new(nanoseconds, pages)
            .metric(RATE, rate(self.total() as u64, nanoseconds))
            .count("pages", (self.total() / self.page) as u64)
    }
}

pub(super) fn all(setting: &Setting) -> Vec<Box<dyn Arm<Populating>>> {
    let chooser = Chooser::default();
    let (cpus, machines) = (setting.cpus.clone(), Machines::default());
    let mut arms: Vec<Box<dyn Arm<Populating>>> = vec![
        // First, while most memory is contiguous.
        Box::new(HugeTlb { chooser: chooser.clone(), cpus: cpus.clone() }),
    ];
    let ours = |kind, policy| {
        Box::new(Ours { kind, policy, cpus: cpus.clone(), machines: machines.clone() })
            as Box<dyn Arm<Populating>>
    };
    arms.extend([
        ours(Kind::Pool, setting.policy),
        ours(Kind::Anonymous, setting.policy),
        ours(Kind::Contiguous, contiguous()),
        Box::new(Thp { chooser, cpus: cpus.clone() }),
    ]);
    arms.extend(kernels().map(|way| Raw::arm(way, &cpus, &machines)));
    arms
}

/// The memory that Quire populates, and how it is cleared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A pool of huge pages, by the measured policy.
    Pool,
    /// Anonymous folios, by the measured policy.
    Anonymous,
    /// A pool of huge pages, as Linux 7.0 clears.
    Contiguous,
}

struct Ours {
    kind: Kind,
    policy: ClearPolicy,
    cpus: Vec<usize>,
    machines: Machines,
}

impl Arm<Populating> for Ours {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Pool => "quire-pool",
            Kind::Anonymous => "quire",
            Kind::Contiguous => "contiguous",
        }
    }

    fn about(&self) -> &'static str {
        match self.kind {
            Kind::Pool => {
                "as `quire` where memory is populated, from a pool of huge pages that the mapping has reserved."
            }
            Kind::Anonymous => {
                "`quire` where memory is populated: each thread calls Mm::madvise(PopulateWrite) on a hosted machine \
                 with the measured policy. No trap, no system call, no cgroup."
            }
            Kind::Contiguous => {
                "`contiguous` where memory is populated: as `quire-pool`, by string stores in runs of 8 MiB, the shape \
                 that Linux has since 7.0 where tasks are not preempted."
            }
        }
    }

    fn setup(&mut self, case: &Populating) -> Result<Box<dyn Prepared + '_>, Skip> {
        let machine = self.machines.of(case)?;
        let order =
            Order::new((case.page / PAGE).ilog2() as u8).ok_or_else(|| Skip("no order".to_owned()))?;
        let pool = ours::pool_of(case.page).filter(|_| self.kind != Kind::Anonymous);
        let config = Config {
            folios: FolioPolicy::only(order).with_on_demand(false),
            allocator: AllocatorConfig {
                clear: Some(self.policy),
                zeroes: ours::zeroes_for(pool),
                ..AllocatorConfig::default()
            },
            ..Config::default()
        };
        Ok(Box::new(OursReady { case: *case, cpus: &self.cpus, machine, config, pool }))
    }
}

struct OursReady<'a> {
    case: Populating,
    cpus: &'a [usize],
    machine: Rc<Hosted>,
    config: Config,
    pool: Option<HugeSize>,
}

impl Prepared for OursReady<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = self.case;
        let said = |error: &dyn std::fmt::Display| Skip(error.to_string());
        let machine = &*self.machine;
        let (sample, zeroes) = machine.run_on(quire::cpu::CpuId(0), || {
            // Marks the memory again, as `Raw` does: otherwise zeroes of the round before would count for
            // this one.
            ours::ranges(machine, false).iter().for_each(|range| mark(machine, range.frames));
            let manager = hosted::raw::memory_manager(machine, &ours::ranges(machine, false), &self.config)
                .map_err(|error| said(&error))?;
            let mut cleared = Cleared::begin(machine);
            if let Some(size) = self.pool {
                ours::fill_pool(&manager, size, (case.total() / case.page) as u64)?;
            }
            cleared.before_use(machine);
            let mm = manager.new_mm().map_err(|error| said(&error))?;
            ours::map_from(&mm, case.total(), self.pool)?;
            let meeting = Meeting::of(case.threads);
            let spans = machine.spawn_pinned_cpus(case.threads, self.cpus, |cpu| {
                mm.switch_in();
                let start = ours::START.add((cpu.index() * case.bytes) as u64);
                meeting.wait();
                let begun = Instant::now();
                let done = mm.madvise(start, case.bytes as u64, Advice::PopulateWrite);
                let ended = Instant::now();
                mm.switch_out();
                done.map(|()| (begun, ended)).map_err(|error| Skip(format!("madvise: {error}")))
            });
            let spans = spans.into_iter().collect::<Result<Vec<_>, Skip>>()?;
            let leaves = machine.leaves(mm.root());
            let mapped = leaves.iter().map(|leaf| FrameRange::new(leaf.frame, leaf.frames));
            let zeroes = mapped.map(|frames| zero_pages(machine, frames)).sum::<u64>();
            let sample = case.sample(length(&spans), mm.rss().anon + mm.rss().huge);
            let sample = sample.counts(cleared.counts(machine, mm.root()));
            mm.switch_in();
            ours::unmap(&mm, case.total())?;
            mm.switch_out();
            mm.exit();
            Ok::<_, Skip>((sample, zeroes))
        })?;
        // A figure of memory that is not all zero would be worth nothing.
        let pages = (case.total() / PAGE) as u64;
        assert_eq!(zeroes, pages, "pages of 4 KiB that are zero, of all that were populated");
        Ok(sample)
    }
}

/// Nanoseconds from the first start to the last end.
pub(super) fn length(spans: &[(Instant, Instant)]) -> f64 {
    let begun = spans.iter().map(|span| span.0).min();
    let ended = spans.iter().map(|span| span.1).max();
    begun.zip(ended).map_or(0.0, |(begun, ended)| (ended - begun).as_nanos() as f64)
}

/// Lets each thread populate its part; returns the nanoseconds.
fn populate(
    threads: usize,
    cpus: &[usize],
    part: impl Fn(usize) -> Result<(), Skip> + Sync,
) -> Result<f64, Skip> {
    let mut parts: Vec<usize> = (0..threads).collect();
    let spans = together(&mut parts, cpus, |at, meeting| {
        meeting.wait();
        let begun = Instant::now();
        part(*at).map(|()| (begun, Instant::now()))
    });
    Ok(length(&spans.into_iter().collect::<Result<Vec<_>, Skip>>()?))
}

/// Huge pages of a pool.
struct HugeTlb {
    chooser: Chooser,
    cpus: Vec<usize>,
}

impl Arm<Populating> for HugeTlb {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "each thread calls MADV_POPULATE_WRITE on private hugetlb memory. The pool is made and verified for \
         the case, and put back after it."
    }

    fn setup(&mut self, case: &Populating) -> Result<Box<dyn Prepared + '_>, Skip> {
        let pool = Pool::of(&self.chooser, case.page, case.total() / case.page)?;
        Ok(Box::new(HugeReady { case: *case, pool, cpus: self.cpus.clone() }))
    }
}

struct HugeReady {
    case: Populating,
    cpus: Vec<usize>,
    pool: Pool,
}

impl Prepared for HugeReady {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = self.case;
        let mapping = self.pool.map(case.total())?;
        let nanoseconds = populate(case.threads, &self.cpus, |part| mapping.populate(part, case.threads))?;
        match self.pool.free() {
            0 => Ok(case.sample(nanoseconds, (case.total() / PAGE) as u64)),
            left => Err(Skip(format!("{left} pages of the pool were not used"))),
        }
    }
}

/// Transparent huge pages.
struct Thp {
    chooser: Chooser,
    cpus: Vec<usize>,
}

impl Arm<Populating> for Thp {
    fn name(&self) -> &'static str {
        "linux-thp"
    }

    fn about(&self) -> &'static str {
        "each thread calls MADV_POPULATE_WRITE on anonymous memory, with transparent huge pages of 2 MiB \
         forced in /sys and verified in /proc/kpageflags. Each folio is also charged, put on the LRU and \
         mapped in the reverse map."
    }

    fn setup(&mut self, case: &Populating) -> Result<Box<dyn Prepared + '_>, Skip> {
        if case.page != 2 << 20 {
            return Err(Skip("Linux has no transparent huge pages of 1 GiB for anonymous memory".to_owned()));
        }
        self.chooser.borrow_mut().choose(HUGE)?;
        Ok(Box::new(ThpReady { case: *case, chooser: self.chooser.clone(), cpus: self.cpus.clone() }))
    }
}

const HUGE: Folio = Folio { order: 9, pmd: true };

struct ThpReady {
    case: Populating,
    cpus: Vec<usize>,
    chooser: Chooser,
}

impl Prepared for ThpReady {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = self.case;
        let region = self.chooser.borrow().map(case.total(), HUGE)?;
        let pages = case.bytes / PAGE;
        let nanoseconds = populate(case.threads, &self.cpus, |part| {
            region.advise_pages(part * pages, pages, Linux::LinuxPopulateWrite).map_err(|error| {
                Skip::because("MADV_POPULATE_WRITE (needs Linux 5.14 and free memory)", error)
            })
        })?;
        verify("self", &region, HUGE)?;
        Ok(case.sample(nanoseconds, (case.total() / PAGE) as u64))
    }
}

#[cfg(test)]
mod tests;
