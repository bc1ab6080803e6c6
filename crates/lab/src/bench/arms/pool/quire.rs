//! Quire's pools, under each descriptor policy.

use hosted::raw::RawPages;
use quire::addr::{Frame, Order};
use quire::hugetlb::{DescriptorPolicy, HugePools, HugeSize};
use quire::page_alloc::{Gfp, NodeSet, PageAllocator};

use hosted::Bare;

use super::busy::Busy;
use super::case::{PAGE_BYTES, Pools, REQUEST};
use super::ground::{Ground, Promised};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::output::say;

/// The largest order that fits into a block beside its descriptors: half a block.
const HALF: u8 = 8;

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
                "HugePools::resize on a bare hosted machine of two CPUs, new for each repetition. A huge \
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
        }
    }

    fn setup(&mut self, case: &Pools) -> Result<Box<dyn Prepared + '_>, Skip> {
        let bytes = case.pages * PAGE_BYTES;
        let ground = Ground::new(self.policy, bytes, case.churned, case.broadcast, &self.promised)?;
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
        let sample = self.ground.with_pools(|pages, pools| self.resize(pages, pools));
        drop(busy);
        sample
    }
}

impl Ready {
    fn resize(&self, pages: &PageAllocator<'_, Bare>, pools: &HugePools) -> Result<Sample, Skip> {
        let case = self.case;
        if case.churned {
            break_up(pages);
        }
        let resize = |wanted| resize(pages, pools, HugeSize::Size2M, wanted);
        let (from, to) = if case.grow { (0, case.pages) } else { (case.pages, 0) };
        resize(from)?;
        let (done, nanoseconds, counted) = self.ground.timed(pages, pools, || resize(to));
        done?;
        let sample = Sample::new(nanoseconds / case.pages as f64, case.pages).metric(REQUEST, nanoseconds);
        Ok(counted.add_to(sample))
    }
}

/// Sets the size of a pool.
///
/// # Errors
/// [`Skip`] when the request came out short.
pub(super) fn resize(
    pages: &PageAllocator<'_, Bare>,
    pools: &HugePools,
    size: HugeSize,
    wanted: u64,
) -> Result<(), Skip> {
    let done = pools.resize(pages, size, NodeSet::ALL, wanted);
    match done.stopped {
        Some(why) => Err(Skip(format!("{} of {wanted} pages: {why:?}", done.after))),
        None => Ok(()),
    }
}

/// Splits every free block once, and frees everything.
fn break_up(pages: &PageAllocator<'_, Bare>) {
    let Some(half) = Order::new(HALF) else { return };
    let taken: Vec<Frame> = std::iter::from_fn(|| pages.alloc_raw(Gfp::USER, half).ok()).collect();
    for frame in taken {
        if let Err(error) = pages.free_raw(frame, half) {
            say(format_args!("quire: freeing a folio failed: {error}"));
        }
    }
    pages.lists().drain_all();
}
