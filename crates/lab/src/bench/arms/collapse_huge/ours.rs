//! Quire's huge pages, mapped by small leaves and counted in each way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hosted::raw::IsolatedMemory;
use hosted::{Hosted, HostedConfig, Nested, during};
use nix::sys::resource::{UsageWho, getrusage};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{AllocatorConfig, CountScheme, NodeSet};
use quire::platform::Platform;
use quire::stats::Stat;
use quire::vm::{Access, Advice, Backing, CollapseSteps, File, MapRequest, Mm, Placement, Sharing};

use super::names::name_of;
use super::{Collapse, STALL, STEP, To, as_posted};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::ours::scheduled::{Points, Scheduled};
use crate::bench::ours::{START, instructions::Instructions, ranges};
use crate::host::threads::Pinned;

/// Bytes of the page.
pub(super) const GIB: u64 = 1 << 30;
/// Bytes of the machine: the page, aligned to its size, and tables, counts and marks for eight address
/// spaces.
const MACHINE: u64 = 2 * GIB + (256 << 20);
const BLOCK: u64 = 2 << 20;
const PAGE: u64 = 4 << 10;

pub(super) struct Quire {
    pub(super) counts: CountScheme,
}

impl Arm<Collapse> for Quire {
    fn name(&self) -> &'static str {
        name_of(self.counts)
    }

    fn about(&self) -> &'static str {
        match self.counts {
            CountScheme::Dense => {
                "Mm::collapse of a shared huge page that 262144 leaves of 4 KiB map, on a bare hosted \
                 machine: it checks the entries, detaches and frees the tables, flushes the modelled CPU and \
                 changes counts a table at a time. Frames stay where they are."
            }
            CountScheme::PerFrame => {
                "as `quire`, with an atomic map count in each frame's 64-byte descriptor."
            }
            CountScheme::HeadOnly => {
                "as `quire`, with one count for the page, changed once for each table; it cannot tell how \
                 often a frame is mapped."
            }
            CountScheme::HeadOnlyByLeaf => "as `head-only`, changed once for each leaf.",
            CountScheme::TotalMapped => {
                "as `head-only`, with the number of mapped pages beside that of leaves; how often a frame is mapped is \
                 the average of its page."
            }
        }
    }

    fn setup(&mut self, case: &Collapse) -> Result<Box<dyn Prepared + '_>, Skip> {
        self.prepare(*case, Way::Collapse)
    }
}

/// A staged case done in one step. It alternates with the staged arm, so that both meet the same noise of the
/// host.
pub(super) struct Direct;

impl Arm<Collapse> for Direct {
    fn name(&self) -> &'static str {
        "quire-direct"
    }

    fn about(&self) -> &'static str {
        "`quire` in one step (CollapseSteps::Direct) in the staged cases."
    }

    fn setup(&mut self, case: &Collapse) -> Result<Box<dyn Prepared + '_>, Skip> {
        if case.to != To::Gigantic(CollapseSteps::Staged) {
            return Err(Skip("this case has no stages".to_owned()));
        }
        Quire { counts: CountScheme::Dense }
            .prepare(Collapse { to: To::Gigantic(CollapseSteps::Direct), ..*case }, Way::Collapse)
    }
}

/// The collapse of the patches for Linux, which no kernel has.
pub(super) struct AsPosted;

impl Arm<Collapse> for AsPosted {
    fn name(&self) -> &'static str {
        "as-posted"
    }

    fn about(&self) -> &'static str {
        "the steps of the patches for Linux (Houghton, v2, 2023) on the same machine, in one step in every case: \
         notifier start for the whole page, zap of all leaves (MADV_DONTNEED, a table at a time), flush, atomic \
         map counts as in `per-frame`, one new leaf (a fault), notifier end."
    }

    fn setup(&mut self, case: &Collapse) -> Result<Box<dyn Prepared + '_>, Skip> {
        if case.to == To::Large {
            return Err(Skip("it makes leaves of 1 GiB".to_owned()));
        }
        Quire { counts: CountScheme::PerFrame }.prepare(Collapse { stepped: 0, ..*case }, Way::AsPosted)
    }
}

/// How the leaves are replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Collapse,
    AsPosted,
}

/// How long a CPU that waits polls before it sleeps: the longest poll of Linux's idle governor `haltpoll`
/// (`guest_halt_poll_ns`).
const HALT_POLL: Duration = Duration::from_micros(200);

impl Quire {
    fn prepare<'a>(&self, case: Collapse, way: Way) -> Result<Box<dyn Prepared + 'a>, Skip> {
        let halt_poll = if case.touched_on.is_some() { HALT_POLL } else { Duration::ZERO };
        let config =
            HostedConfig { clearing: false, prefault: false, halt_poll, ..HostedConfig::bench(MACHINE) };
        let machine = config.with_cpus(2).build().map_err(|error| Skip(error.to_string()))?;
        Ok(Box::new(Ready { case, way, machine, counts: self.counts, stepped: None }))
    }
}

struct Ready {
    case: Collapse,
    way: Way,
    machine: Hosted,
    counts: CountScheme,
    /// Locked instructions and descriptors, from the run that steps through instructions.
    stepped: Option<(u64, u64)>,
}

/// A machine with one page of 1 GiB, which belongs to a file.
struct World<'w, 'm, P: Platform> {
    machine: &'w Hosted,
    manager: &'m MemoryManager<'m, P>,
    file: &'w File<'m, P>,
}

impl Ready {
    fn with_world<P: Platform + IsolatedMemory, R>(
        &self,
        platform: &P,
        work: impl FnOnce(&World<'_, '_, P>) -> Result<R, Skip>,
    ) -> Result<R, Skip> {
        self.machine.run_on(CpuId(0), || {
            let allocator = AllocatorConfig { counts: self.counts, ..AllocatorConfig::default() };
            let config = Config { allocator, ..Config::default() };
            let manager = hosted::raw::memory_manager(platform, &ranges(&self.machine, false), &config);
            let manager = manager.map_err(|error| Skip(error.to_string()))?;
            let grown = manager.resize_huge(HugeSize::Size1G, NodeSet::ALL, 1);
            if grown.after != 1 {
                return Err(Skip("the machine has no page of 1 GiB".to_owned()));
            }
            let file =
                manager.huge_file(HugeSize::Size1G, GIB).map_err(|error| Skip::because("a file", error))?;
            work(&World { machine: &self.machine, manager: &manager, file: &file })
        })
    }

    /// Counts the locked instructions of some tables and the descriptors that they touch, once for
    /// each case.
    fn step(&mut self) -> Result<(u64, u64), Skip> {
        if let Some(stepped) = self.stepped {
            return Ok(stepped);
        }
        // SAFETY: H3: the manager lives inside `run_on` of this machine, and no other machine runs in between.
        let bare = unsafe { self.machine.bare() };
        let stepped = self.with_world(bare, |world| {
            let tables = self.case.stepped;
            let mm = world.in_pieces(tables)?;
            mm.switch_in();
            let instructions = Instructions::at_most(1 << 20);
            let map = world.manager.pages().memmap();
            let done = instructions.follow(world.machine, map, || mm.collapse(START, tables * BLOCK))?;
            mm.switch_out();
            let done = done.map_err(|error| Skip::because("collapse", error))?;
            if done.reshaped != tables || !instructions.are_all() {
                return Err(Skip("the collapse was not followed to its end".to_owned()));
            }
            Ok((instructions.locked(), instructions.descriptors()))
        })?;
        self.stepped = Some(stepped);
        Ok(stepped)
    }
}

impl<'m, P: Platform> World<'_, 'm, P> {
    /// A new address space that maps the first `tables` times 2 MiB of the page by 4 KiB leaves.
    fn in_pieces(&self, tables: u64) -> Result<Mm<'m, P>, Skip> {
        let said = |what: &'static str| move |error: quire::error::MmError| Skip::because(what, error);
        let mm = self.manager.new_mm().map_err(said("an address space"))?;
        let request = MapRequest {
            addr: START,
            len: GIB,
            prot: Protection::READ | Protection::WRITE,
            placement: Placement::Fixed,
            sharing: Sharing::Shared,
            backing: Backing::File { file: self.file, page_offset: 0 },
            ..MapRequest::default()
        };
        mm.mmap(&request).map_err(said("mmap"))?;
        mm.madvise(START, GIB, Advice::Split).map_err(said("MADV_SPLIT"))?;
        let fault = |at: VirtAddr| mm.fault(at, Access::Write).map_err(|error| Skip::because("fault", error));
        fault(START)?;
        for table in 0..tables {
            // Unmapping one page splits the large leaf into leaves of 4 KiB; the page comes back as one of
            // them.
            let page = START.add(table * BLOCK + PAGE);
            mm.madvise(page, PAGE, Advice::DontNeed).map_err(said("MADV_DONTNEED"))?;
            fault(page)?;
        }
        Ok(mm)
    }

    fn collapse(&self, case: &Collapse, way: Way, mm: &Mm<'_, P>) -> Result<(f64, u64), Skip> {
        let start = Instant::now();
        if way == Way::AsPosted {
            let done = as_posted::collapse(self.manager.pages().platform(), mm)?;
            return Ok((start.elapsed().as_nanos() as f64, done * (GIB / PAGE)));
        }
        let done = match case.to {
            // First all but the last 2 MiB, so that no leaf of 1 GiB can be made; then the rest.
            To::Large => mm.collapse(START, GIB - BLOCK).and_then(|most| {
                let last = mm.collapse(START.add(GIB - BLOCK), BLOCK)?;
                Ok((most.reshaped + last.reshaped) * (BLOCK / PAGE))
            }),
            To::Gigantic(steps) => mm.collapse_in(START, GIB, steps).map(|done| done.gigantic * (GIB / PAGE)),
        };
        let nanoseconds = start.elapsed().as_nanos() as f64;
        done.map(|pages| (nanoseconds, pages)).map_err(|error| Skip::because("collapse", error))
    }

    fn spaces(&self, case: &Collapse) -> Result<Vec<Mm<'m, P>>, Skip> {
        (0..case.spaces).map(|_| self.in_pieces(GIB / BLOCK)).collect()
    }
}

/// One collapse on an otherwise idle machine.
fn alone(world: &World<'_, '_, Scheduled<'_>>, case: &Collapse, way: Way) -> Result<Sample, Skip> {
    let spaces = world.spaces(case)?;
    let counts = world.manager.stat(Stat::NrMapCountPages);
    let mm = &spaces[0];
    mm.switch_in();
    let platform = world.manager.pages().platform();
    platform.begin_anew();
    let done = world.collapse(case, way, mm);
    platform.end();
    mm.switch_out();
    let (nanoseconds, pages) = done?;
    let step = platform.longest().unwrap_or(nanoseconds);
    let left = world.manager.stat(Stat::NrMapCountPages);
    let sample = Sample::new(nanoseconds, pages).metric(STEP, step);
    Ok(sample.count("count_frames_in_pieces", counts).count("count_frames_after", left))
}

/// One collapse while another CPU reads all over the page, or a virtual one loads and stores.
fn beside(
    world: &World<'_, '_, Hosted>,
    case: &Collapse,
    way: Way,
    processor: usize,
) -> Result<Sample, Skip> {
    let spaces = world.spaces(case)?;
    let mm = &spaces[0];
    let registered = case.virtual_cpu.then(|| mm.register_secondary());
    let nested = registered.as_ref().map(|_| Nested::new(world.machine, mm, START, GIB, 1));
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (done, switched, touched) = std::thread::scope(|scope| {
        let touching = scope.spawn(|| {
            let _pinned = Pinned::to(processor);
            world.machine.run_on(CpuId(1), || match &nested {
                Some(nested) => touch_as_guest(nested, mm, case.guest_bytes, &begun, &over),
                None => touch(world.machine, mm, &begun, &over),
            })
        });
        while !begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        if let Some(nested) = &nested {
            nested.forget_stats();
        }
        mm.switch_in();
        let before = switched_away();
        let done = during("collapse", || world.collapse(case, way, mm));
        let switched = switched_away() - before;
        mm.switch_out();
        over.store(true, Ordering::Release);
        let touched = touching.join().unwrap_or_default();
        (done, switched + touched.switched, touched)
    });
    let (nanoseconds, pages) = done?;
    let sample = Sample::new(nanoseconds, pages)
        .metric(STALL, touched.longest)
        .count("accesses_that_met_it", touched.met)
        .count("switched_away", switched);
    let Some(nested) = nested else { return Ok(sample) };
    let stats = nested.stats();
    let brackets = stats.brackets.get("collapse").map_or(0, |brackets| brackets.count);
    Ok(sample.count("invalidate_brackets", brackets).count("larger_copies", stats.collapses))
}

/// How often the scheduler took the processor from this thread and gave it to another.
fn switched_away() -> u64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches() as u64)
}

/// What the thread saw that touches the page.
#[derive(Default)]
struct Touched {
    /// Accesses that faulted.
    met: u64,
    /// Nanoseconds of the longest of them.
    longest: f64,
    /// As `switched_away`.
    switched: u64,
}

/// Reads at random until the collapse is over.
fn touch(machine: &Hosted, mm: &Mm<'_, Hosted>, begun: &AtomicBool, over: &AtomicBool) -> Touched {
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut met, mut longest) = (0, 0.0f64);
    let before = switched_away();
    mm.switch_in();
    while !over.load(Ordering::Acquire) {
        let at = START.add(rng.u64(..GIB / PAGE) * PAGE);
        let start = Instant::now();
        let mut faulted = false;
        while machine.read(at, &mut [0; 8]).is_err() {
            faulted = true;
            if mm.fault(at, Access::Read).is_err() {
                break;
            }
        }
        if faulted {
            met += 1;
            longest = longest.max(start.elapsed().as_nanos() as f64);
        }
        begun.store(true, Ordering::Release);
    }
    mm.switch_out();
    Touched { met, longest, switched: switched_away() - before }
}

/// As `touch`, by a virtual CPU that loads and stores. Its tables have every other of its pages, so that it
/// faults on the others meanwhile.
fn touch_as_guest(
    nested: &Nested<'_>,
    mm: &Mm<'_, Hosted>,
    bytes: u64,
    begun: &AtomicBool,
    over: &AtomicBool,
) -> Touched {
    let cpu = nested.cpu(0);
    for at in (0..bytes).step_by(2 * PAGE as usize) {
        let _ = cpu.store(mm, at, at);
    }
    let before = switched_away();
    begun.store(true, Ordering::Release);
    let mut rng = fastrand::Rng::with_seed(7);
    while !over.load(Ordering::Acquire) {
        let _ = cpu.load(mm, rng.u64(..bytes / PAGE) * PAGE);
        let at = rng.u64(..bytes / PAGE) * PAGE;
        let _ = cpu.store(mm, at, at);
    }
    let stats = nested.stats();
    Touched {
        met: stats.faults + stats.retries,
        longest: stats.longest_stall.as_nanos() as f64,
        switched: switched_away() - before,
    }
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = self.case;
        if let Some(processor) = case.touched_on {
            return self.with_world(&self.machine, |world| beside(world, &case, self.way, processor));
        }
        let stepped = if self.case.stepped > 0 { Some(self.step()?) } else { None };
        // SAFETY: H3: the manager lives inside `run_on` of this machine, and no other machine runs in between.
        let bare = unsafe { self.machine.bare() };
        let scheduled = Scheduled::on(bare, Points::Watched);
        let sample = self.with_world(&scheduled, |world| alone(world, &case, self.way))?;
        Ok(match stepped {
            Some((locked, descriptors)) => {
                sample.count("atomics_of_4_tables", locked).count("descriptors_of_4_tables", descriptors)
            }
            None => sample,
        })
    }
}
