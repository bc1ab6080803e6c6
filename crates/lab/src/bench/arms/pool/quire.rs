//! Quire's pools, under each descriptor policy.

use hosted::Bare;
use quire::hugetlb::{DescriptorPolicy, HugeSize};
use quire::manager::MemoryManager;
use quire::page_alloc::NodeSet;

use super::busy::Busy;
use super::case::{PAGE_BYTES, Pools, REQUEST};
use super::churned::{self, Churned};
use super::ground::{Ground, Promised};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};

pub(super) fn all() -> Vec<Box<dyn Arm<Pools>>> {
    let promised = Promised::default();
    DescriptorPolicy::ALL
        .map(|policy| -> Box<dyn Arm<Pools>> { Box::new(Quire { policy, promised: promised.clone() }) })
        .into()
}

struct Quire {
    policy: DescriptorPolicy,
    promised: Promised,
}

impl Arm<Pools> for Quire {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn about(&self) -> &'static str {
        match self.policy {
            DescriptorPolicy::InBlock => {
                "MemoryManager::resize_huge on a bare hosted machine of two CPUs, new for each repetition. A huge \
                 page has no descriptors; no system call, no cgroup."
            }
            DescriptorPolicy::Full => {
                "as `in-block`, over a window of descriptors that are all written when a page joins and when \
                 it leaves: nothing is saved."
            }
            DescriptorPolicy::PerPage => {
                "as `full`; seven of eight frames of a page's descriptors are freed when it joins and \
                 brought back when it leaves, with flushes for each page (membarrier for the interrupts)."
            }
            DescriptorPolicy::Batched => {
                "as `per-page` for all pages of the request together, with two \
             flushes."
            }
            DescriptorPolicy::MaskTail => {
                "as `batched`; all pages of an order in a zone share one frame of tails, which name no head. A page of \
                 2 MiB waits for no grace period, one of 1 GiB for one when it joins; as proposed for Linux in 2026, \
                 where neither waits."
            }
        }
    }

    fn setup(&mut self, case: &Pools) -> Result<Box<dyn Prepared + '_>, Skip> {
        let bytes = case.pages * PAGE_BYTES;
        let moved = if case.churned { churned::IN_USE.frames() } else { 0 };
        let ground = Ground::new(self.policy, bytes, moved, case.broadcast, &self.promised)?;
        Ok(Box::new(Ready { case: *case, ground }))
    }
}

struct Ready {
    case: Pools,
    ground: Ground,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let busy = self.case.busy.then(|| self.case.processors.1.map(Busy::on));
        let sample = self.ground.with_manager(|manager| {
            if !self.case.churned {
                return self.resize(manager);
            }
            let churned = Churned::new(manager, self.case.pages)?;
            let sample = self.resize(manager);
            churned.end(manager);
            sample
        });
        drop(busy);
        sample
    }
}

impl Ready {
    fn resize(&self, manager: &MemoryManager<'_, Bare>) -> Result<Sample, Skip> {
        let case = self.case;
        let (from, to) = if case.grow { (0, case.pages) } else { (case.pages, 0) };
        resize(manager, HugeSize::Size2M, from)?;
        let (done, nanoseconds, counted) =
            self.ground.timed(manager, || resize(manager, HugeSize::Size2M, to));
        done?;
        let sample = Sample::new(nanoseconds / case.pages as f64, case.pages).metric(REQUEST, nanoseconds);
        Ok(counted.add_to(sample))
    }
}

/// Sets the size of a pool.
///
/// # Errors
/// [`Skip`] when the request came out short.
pub(super) fn resize(manager: &MemoryManager<'_, Bare>, size: HugeSize, wanted: u64) -> Result<(), Skip> {
    let done = manager.resize_huge(size, NodeSet::ALL, wanted);
    match done.stopped {
        Some(why) => Err(Skip(format!("{} of {wanted} pages: {why:?}", done.after))),
        None => Ok(()),
    }
}
