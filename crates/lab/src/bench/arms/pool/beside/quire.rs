//! Quire's pools and small pages, under each descriptor policy.

use std::cell::RefCell;
use std::rc::Rc;

use hosted::{Bare, Hosted, HostedConfig};
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugeSize};
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::NodeSet;
use quire::vm::Mm;

use super::{Memory, Resizing, WORKERS};
use crate::bench::arms::churn::pieces::quire_piece;
use crate::bench::arms::pool::case::PAGE_BYTES;
use crate::bench::arms::pool::counts::Counts;
use crate::bench::arms::pool::ground::{LEFT_FREE, SLACK};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::Folio;
use crate::bench::ours;
use crate::host::memory;

/// The machine of all arms. Its memory is populated before anything is timed, since the workers use frames
/// that the pool gives back.
type Kept = Rc<RefCell<Option<Rc<Hosted>>>>;

pub(super) fn all() -> Vec<Box<dyn Arm<Resizing>>> {
    let kept = Kept::default();
    DescriptorPolicy::ALL
        .map(|policy| -> Box<dyn Arm<Resizing>> { Box::new(Quire { policy, kept: kept.clone() }) })
        .into()
}

struct Quire {
    policy: DescriptorPolicy,
    kept: Kept,
}

impl Arm<Resizing> for Quire {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn about(&self) -> &'static str {
        match self.policy {
            DescriptorPolicy::InBlock => {
                "one CPU of a bare hosted machine calls HugePools::resize, two others mmap, fault (cleared) \
                 and munmap in one address space. Remote flushes use membarrier; no other system call, no \
                 trap, no cgroup, no LRU."
            }
            DescriptorPolicy::Full => {
                "as `in-block`, over a window of descriptors that are all written when a page joins and when \
                 it leaves: nothing is saved."
            }
            DescriptorPolicy::PerPage => {
                "as `full`; a page's descriptors are freed when it joins and brought back when it leaves, \
                 with flushes for each page."
            }
            DescriptorPolicy::Batched => {
                "as `per-page` for all pages of a request together, with two \
             flushes."
            }
            DescriptorPolicy::MaskTail => {
                "as `batched`; all pages share one frame of tails, and no grace period passes."
            }
        }
    }

    fn setup(&mut self, case: &Resizing) -> Result<Box<dyn Prepared + '_>, Skip> {
        let machine = self.machine(case.pages * PAGE_BYTES)?;
        let config = Config { descriptors: self.policy, ..Config::default() };
        let config = ours::with_folios(config, Folio { order: 0, pmd: false })?;
        Ok(Box::new(Ready { case: case.clone(), machine, config }))
    }
}

impl Quire {
    /// A machine with room for a pool of `bytes` bytes, a window and the workers' pages.
    fn machine(&self, bytes: u64) -> Result<Rc<Hosted>, Skip> {
        let bytes = (bytes + bytes / 24 + SLACK).next_multiple_of(PAGE_BYTES);
        let mut kept = self.kept.borrow_mut();
        if let Some(machine) = kept.as_ref().filter(|machine| machine.ranges()[0].bytes >= bytes) {
            return Ok(machine.clone());
        }
        *kept = None;
        if memory::available().unwrap_or(0) < bytes + LEFT_FREE {
            return Err(Skip(format!(
                "the machine needs {} GiB, more than this host has available: free memory",
                bytes.div_ceil(1 << 30)
            )));
        }
        let built = HostedConfig::bench(bytes).with_cpus(WORKERS + 1).build();
        let machine = Rc::new(built.map_err(|error| Skip(error.to_string()))?);
        ours::keep_from_children(&machine)?;
        *kept = Some(machine.clone());
        Ok(machine)
    }
}

struct Ready {
    case: Resizing,
    machine: Rc<Hosted>,
    config: Config,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let machine = &*self.machine;
        // SAFETY: H3: threads inside `run_on` of this machine alone use it, and so is the manager.
        let bare = unsafe { machine.bare() };
        let ranges = ours::ranges(machine, false);
        let manager = machine.run_on(CpuId(0), || hosted::raw::memory_manager(bare, &ranges, &self.config));
        let manager = manager.map_err(|error| Skip(error.to_string()))?;
        let mm = machine.run_on(CpuId(0), || manager.new_mm()).map_err(|error| Skip(error.to_string()))?;
        let stat = |stat| manager.stat(stat);
        let counts = Counts::start(stat, machine, manager.huge_pools());
        let sample = self.case.play(&Ours { machine, manager: &manager, mm: &mm });
        let counted = counts.end(stat, machine, manager.huge_pools());
        machine.run_on(CpuId(0), || mm.exit());
        sample.map(|sample| counted.add_to(sample))
    }
}

struct Ours<'a> {
    machine: &'a Hosted,
    manager: &'a MemoryManager<'a, Bare>,
    mm: &'a Mm<'a, Bare>,
}

impl Memory for Ours<'_> {
    fn enter(&self, cpu: usize, worker: bool, body: &mut dyn FnMut()) {
        self.machine.run_on(CpuId(cpu as u32), || {
            if worker {
                self.mm.switch_in();
            }
            body();
            if worker {
                self.mm.switch_out();
            }
        });
    }

    fn region(&self, bytes: usize) -> Option<()> {
        quire_piece(self.mm, bytes)
    }

    fn resize(&self, wanted: u64) -> Result<u64, Skip> {
        let pools = self.manager.huge_pools();
        Ok(pools.resize(self.manager.pages(), HugeSize::Size2M, NodeSet::ALL, wanted).after)
    }
}
