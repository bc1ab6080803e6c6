//! Touches a fresh folio of 1 GiB of Quire, which the first fault clears as a whole, or in part on demand.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hosted::Hosted;
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::limits::BLOCK_SIZE;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{AllocatorConfig, Zeroes};
use quire::platform::FramePlatform;
use quire::vm::{FolioPolicy, Mm};

use super::ground::{GIB, Shared, all_zero, mark, store, word, zeroes};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::ours;
use crate::bench::ours::cleared::Cleared;
use crate::host::threads::Meeting;

/// Bytes of a piece that is cleared on demand.
pub(super) const PIECE: usize = BLOCK_SIZE as usize;
/// The byte that is touched first: in the middle of a piece in the middle of the folio.
pub(super) const TOUCHED: usize = 300 * PIECE + 77 * PAGE + 5;

/// Touch a folio of 1 GiB for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// What is timed.
    pub what: What,
}

/// What is timed, from the start of the first store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Until that store is done.
    Byte,
    /// Until one leaf maps all of the folio, with no other work meanwhile.
    All,
    /// Until a byte in each 2 MiB was stored, in order of address.
    Each,
}

impl First {
    /// The offsets between which memory is mapped afterwards.
    pub(super) fn ready(self) -> (usize, usize) {
        match self.what {
            What::Byte => (TOUCHED / PIECE * PIECE, (TOUCHED / PIECE + 1) * PIECE),
            What::All | What::Each => (0, GIB),
        }
    }

    /// The offsets of the stores, in order.
    pub(super) fn stores(self) -> impl Iterator<Item = usize> {
        let (first, last) = if self.what == What::Each { (0, GIB / PIECE - 1) } else { (300, 300) };
        (first..=last).map(|piece| piece * PIECE + TOUCHED % PIECE)
    }

    /// The sample of this case.
    ///
    /// # Errors
    /// [`Skip`] when a mark is left.
    pub(super) fn sample(self, nanoseconds: f64, zeroes: u64) -> Result<Sample, Skip> {
        let (start, end) = self.ready();
        all_zero(zeroes, end - start)?;
        Ok(Sample::new(nanoseconds, zeroes).count("pieces", ((end - start) / PIECE) as u64))
    }
}

pub(super) fn all(shared: &Rc<Shared>) -> impl Iterator<Item = Box<dyn Arm<First>>> {
    let arm = |way| Box::new(Ours { way, shared: shared.clone() }) as Box<dyn Arm<First>>;
    [Way::OnDemand, Way::Helped, Way::Ahead, Way::Pool, Way::PoolAhead, Way::Whole].map(arm).into_iter()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Whole,
    OnDemand,
    Helped,
    Ahead,
    Pool,
    PoolAhead,
}

impl Way {
    fn pool(self) -> Option<HugeSize> {
        matches!(self, Self::Pool | Self::PoolAhead).then_some(HugeSize::Size1G)
    }
}

struct Ours {
    way: Way,
    shared: Rc<Shared>,
}

impl Arm<First> for Ours {
    fn name(&self) -> &'static str {
        match self.way {
            Way::Whole => "whole",
            Way::OnDemand => "quire",
            Way::Helped => "quire-helped",
            Way::Ahead => "quire-ahead",
            Way::Pool => "quire-pool",
            Way::PoolAhead => "quire-pool-ahead",
        }
    }

    fn about(&self) -> &'static str {
        match self.way {
            Way::Whole => {
                "the fault of the first store clears the whole folio (FolioPolicy::with_on_demand(false)), \
                 on a hosted machine with the measured policy. No trap."
            }
            Way::OnDemand => {
                "the fault clears the 2 MiB that were touched; where the case waits for all, the same CPU \
                 clears the rest by MemoryManager::clear_ahead."
            }
            Way::Ahead => {
                "an idle CPU cleared all free memory before, untimed (MemoryManager::zero_ahead), so the \
                 fault finds a folio that is known to be zero."
            }
            Way::Pool => {
                "a page of a pool of huge pages, reserved by the mapping, as the published case is: as `quire` \
                 otherwise."
            }
            Way::PoolAhead => {
                "as `quire-pool`, and an idle CPU cleared the page in its pool before, untimed."
            }
            Way::Helped => "as `quire`, and a second CPU runs clear_ahead from the start.",
        }
    }

    fn setup(&mut self, case: &First) -> Result<Box<dyn Prepared + '_>, Skip> {
        let cpus = if self.way == Way::Helped { 2 } else { 1 };
        if self.shared.processors.len() < cpus {
            return Err(Skip("this machine has one processor, so no other CPU can help".to_owned()));
        }
        let machine = self.shared.machine(GIB, GIB)?;
        let ahead = |way| if self.way == way { u64::MAX } else { 0 };
        let zeroes = Zeroes {
            blocks_ahead: ahead(Way::Ahead),
            pools_ahead: ahead(Way::PoolAhead),
            ..ours::zeroes_for(self.way.pool())
        };
        let config = Config {
            folios: FolioPolicy::only(Order::GIGANTIC).with_on_demand(self.way != Way::Whole),
            allocator: AllocatorConfig {
                clear: Some(self.shared.policy),
                zeroes,
                ..AllocatorConfig::default()
            },
            ..Config::default()
        };
        let (processors, pool) = (&self.shared.processors, self.way.pool());
        Ok(Box::new(Ready { case: *case, cpus, processors, machine, config, pool }))
    }
}

struct Ready<'a> {
    case: First,
    cpus: usize,
    processors: &'a [usize],
    machine: Rc<Hosted>,
    config: Config,
    pool: Option<HugeSize>,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (case, machine) = (self.case, &*self.machine);
        let said = |error: &dyn std::fmt::Display| Skip(error.to_string());
        mark(machine);
        machine.run_on(CpuId(0), || {
            let manager = hosted::raw::memory_manager(machine, &ours::ranges(machine, false), &self.config)
                .map_err(|error| said(&error))?;
            let mut cleared = Cleared::begin(machine);
            if let Some(size) = self.pool {
                ours::fill_pool(&manager, size, 1)?;
            }
            while manager.zero_ahead() {}
            cleared.before_use(machine);
            let mm = manager.new_mm().map_err(|error| said(&error))?;
            ours::map_from(&mm, GIB, self.pool)?;
            let (meeting, over) = (Meeting::of(self.cpus), AtomicBool::new(false));
            let results = machine.spawn_pinned_cpus(self.cpus, self.processors, |cpu| {
                meeting.wait();
                if cpu != CpuId(0) {
                    help(&manager, &over);
                    return None;
                }
                mm.switch_in();
                let sample = touch(case, machine, &manager, &mm);
                over.store(true, Ordering::Release);
                mm.switch_out();
                Some(sample)
            });
            let sample =
                results.into_iter().flatten().next().unwrap_or_else(|| Err(Skip("no thread".to_owned())));
            let sample = sample.map(|sample| sample.counts(cleared.counts(machine, mm.root())));
            // The exit gives back pieces that were never cleared.
            mm.exit();
            sample
        })
    }
}

/// The loop of an idle CPU.
fn help(manager: &MemoryManager<'_, Hosted>, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
        if !manager.clear_ahead() {
            std::hint::spin_loop();
        }
    }
}

/// Makes the case's stores, clears the rest where the case waits for all, then checks the memory.
fn touch(
    case: First,
    machine: &Hosted,
    manager: &MemoryManager<'_, Hosted>,
    mm: &Mm<'_, Hosted>,
) -> Result<Sample, Skip> {
    let addr = |at: usize| ours::START.add(at as u64);
    let begun = Instant::now();
    case.stores().try_for_each(|at| store(machine, mm, addr(at)))?;
    if case.what == What::All {
        while manager.clear_ahead() {}
        wait_for_leaf(machine, mm);
    }
    let nanoseconds = begun.elapsed().as_nanos() as f64;
    if case.what == What::Each {
        wait_for_leaf(machine, mm);
    }
    let (start, end) = case.ready();
    let zeroes = zeroes(start, end, |at| word(machine, addr(at)));
    let stored = case.stores().filter(|&at| read_byte(machine, addr(at)) == Some(1)).count();
    if stored != case.stores().count() {
        return Err(Skip(format!("{stored} stores are left")));
    }
    case.sample(nanoseconds, zeroes)
}

/// Waits until one leaf replaces those of the pieces: another CPU may be clearing the last piece, and nothing
/// can be read while leaves are exchanged.
fn wait_for_leaf(machine: &Hosted, mm: &Mm<'_, Hosted>) {
    let whole = |frames: u64| frames == (GIB / PAGE) as u64;
    while !machine.probe(mm.root(), ours::START).is_some_and(|leaf| whole(leaf.frames)) {
        machine.relax();
    }
}

fn read_byte(machine: &Hosted, addr: VirtAddr) -> Option<u8> {
    let mut byte = [0];
    machine.read(addr, &mut byte).ok().map(|()| byte[0])
}
