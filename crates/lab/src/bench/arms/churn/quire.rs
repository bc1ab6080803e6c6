//! Several CPUs map, touch and unmap in one of Quire's address spaces.

use hosted::{Bare, Hosted, HostedConfig};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::manager::Config;
use quire::vm::{Access, Advice, MapRequest, Mm, Placement};

use super::pieces::quire_piece;
use super::{Churn, ChurnSpan, Drop, Work};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::ours;
use crate::bench::ours::START;
use crate::bench::ours::counted::Counted;
use crate::bench::ours::verbs::Way;
use crate::host::cycles::Moment;
use crate::host::threads::{Meeting, together};

/// Memory of the machine.
const BYTES: u64 = 256 << 20;

pub(super) struct Quire {
    way: Way,
    machine: Option<Hosted>,
}

impl Quire {
    /// The arm that unmaps in the given way.
    pub(super) fn by(way: Way) -> Self {
        Self { way, machine: None }
    }
}

impl Arm<Churn> for Quire {
    fn name(&self) -> &'static str {
        self.way.name
    }

    fn about(&self) -> &'static str {
        self.way.about.unwrap_or(
            "Mm::mmap, one clearing Mm::fault for each page, Mm::munmap on a bare hosted machine, with a CPU \
             for each thread. Remote flushes interrupt processors by membarrier, and threads that wait call \
             sched_yield or futex; no other system call and no trap.",
        )
    }

    fn setup(&mut self, case: &Churn) -> Result<Box<dyn Prepared + '_>, Skip> {
        let wanted = HostedConfig::bench(BYTES).with_cpus(case.threads);
        // Another number of CPUs on the same memory: populating it takes longer than a small run of a case.
        let machine = match self.machine.take() {
            Some(old) => old.restart(wanted),
            None => wanted.build(),
        };
        let machine = machine.map_err(|error| Skip(error.to_string()))?;
        ours::keep_from_children(&machine)?;
        let config = ours::with_folios((self.way.choose)(Config::default()), Folio { order: 0, pmd: false })?;
        Ok(Box::new(Ready { case: case.clone(), config, machine: self.machine.insert(machine) }))
    }
}

struct Ready<'a> {
    case: Churn,
    config: Config,
    machine: &'a Hosted,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (machine, case) = (self.machine, &self.case);
        // SAFETY: H3: threads inside `run_on` of this machine alone use it, and so is the manager.
        let bare = unsafe { machine.bare() };
        let ranges = ours::ranges(machine, false);
        let manager = machine.run_on(CpuId(0), || hosted::raw::memory_manager(bare, &ranges, &self.config));
        let manager = manager.map_err(|error| Skip(error.to_string()))?;
        let mm = machine.run_on(CpuId(0), || manager.new_mm()).map_err(|error| Skip(error.to_string()))?;
        if case.work != Work::Map {
            machine
                .run_on(CpuId(0), || map_at(&mm, 0, case.range_bytes()))
                .ok_or_else(|| Skip("the range could not be mapped".to_owned()))?;
        }
        let counted = Counted::start(&manager, machine, None);
        let mut cpus: Vec<CpuId> = (0..case.threads).map(|cpu| CpuId(cpu as u32)).collect();
        let threads = together(&mut cpus, &case.cpus, |cpu, meeting| {
            machine.run_on(*cpu, || work(&mm, case, cpu.0 as usize, meeting))
        });
        let sample = counted.add_to(case.sample(&threads)?);
        machine.run_on(CpuId(0), || mm.exit());
        Ok(sample)
    }
}

fn work(mm: &Mm<'_, Bare>, case: &Churn, thread: usize, meeting: &Meeting) -> ChurnSpan {
    mm.switch_in();
    meeting.wait();
    let start = Moment::now();
    let one = |round| match case.work {
        Work::Map => quire_piece(mm, case.bytes),
        _ => touch_and_drop(mm, case, case.piece(thread, round)),
    };
    let pieces = (0..case.rounds).map_while(one).count() as u64;
    let end = Moment::now();
    // This CPU receives the other threads' flushes until all are done, as in a program.
    meeting.wait();
    mm.switch_out();
    ChurnSpan { start, end, pieces }
}

/// Maps memory at a place of the range, and unmaps what was there; `None` if memory runs out.
fn map_at(mm: &Mm<'_, Bare>, offset: usize, bytes: usize) -> Option<()> {
    let (prot, placement) = (Protection::READ | Protection::WRITE, Placement::Fixed);
    let addr = START.add(offset as u64);
    mm.mmap(&MapRequest { addr, len: bytes as u64, prot, placement, ..MapRequest::default() })
        .ok()
        .map(|_| ())
}

/// Touches one piece of the range, and drops its pages; `None` if memory runs out.
fn touch_and_drop(mm: &Mm<'_, Bare>, case: &Churn, (offset, drop): (usize, Drop)) -> Option<()> {
    let (at, len) = (START.add(offset as u64), case.bytes as u64);
    if case.work == Work::Overlapping {
        // Another thread may just have taken the right to store.
        let _ = mm.madvise(at, len, Advice::PopulateWrite);
    } else {
        for page in (0..len).step_by(PAGE) {
            mm.fault(at.add(page), Access::Write).ok()?;
        }
    }
    match drop {
        Drop::DontNeed => mm.madvise(at, len, Advice::DontNeed).ok(),
        Drop::Protect => {
            for prot in [Protection::READ, Protection::READ | Protection::WRITE] {
                mm.mprotect(at, len, prot).ok()?;
            }
            mm.madvise(at, len, Advice::DontNeed).ok()
        }
        Drop::MapOver => map_at(mm, offset, case.bytes),
    }
}
