//! Quire's pages of 1 GiB, demoted and promoted under each descriptor policy.

use std::time::Duration;

use hosted::Bare;
use hosted::raw::RawPools;
use quire::addr::{Frame, Order};
use quire::hugetlb::{Demoted, DescriptorPolicy, HugePools, HugeSize};
use quire::manager::MemoryManager;
use quire::page_alloc::{NodeSet, PageAllocator};

use super::case::{Demotion, PARTS, REQUEST, Way};
use super::ground::{Ground, Promised};
use super::quire::resize;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};

/// Seed of the order of the pages in [`Way::PromoteScattered`], the same in every arm and repetition.
const SEED: u64 = 6;

pub(super) fn all() -> Vec<Box<dyn Arm<Demotion>>> {
    let promised = Promised::default();
    DescriptorPolicy::ALL
        .map(|policy| -> Box<dyn Arm<Demotion>> { Box::new(Quire { policy, promised: promised.clone() }) })
        .into()
}

struct Quire {
    policy: DescriptorPolicy,
    promised: Promised,
}

impl Arm<Demotion> for Quire {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn about(&self) -> &'static str {
        match self.policy {
            DescriptorPolicy::InBlock => {
                "HugePools::demote and HugePools::promote on a bare hosted machine of two CPUs, new for each \
                 repetition. A huge page has no descriptors, so only links and counts of both pools change; \
                 no system call."
            }
            DescriptorPolicy::Full => {
                "as `in-block`, over a window of descriptors that are all written: 262144 for each page of 1 \
                 GiB, as its parts and as itself."
            }
            DescriptorPolicy::PerPage => {
                "as `full`; the descriptors' frames come back for each page that leaves its pool and are \
                 freed for each page that joins one, with a grace period and flushes for each."
            }
            DescriptorPolicy::Batched => {
                "as `per-page`, with the 512 parts of a page of 1 GiB together as one batch."
            }
            DescriptorPolicy::MaskTail => {
                "as `batched`; all pages of an order in a zone share one frame of tails. A page of 1 GiB waits for a grace \
                 period when it joins, and for none when it leaves; pages of 2 MiB wait for none."
            }
        }
    }

    fn setup(&mut self, case: &Demotion) -> Result<Box<dyn Prepared + '_>, Skip> {
        // Two pages more, so that enough are aligned wherever the tables and the window are.
        let bytes = (case.pages + 2) * HugeSize::Size1G.bytes();
        let ground = Ground::new(self.policy, bytes, 0, Duration::ZERO, &self.promised)?;
        Ok(Box::new(Ready { case: *case, ground }))
    }
}

struct Ready {
    case: Demotion,
    ground: Ground,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.ground.with_manager(|manager| self.change(manager))
    }
}

impl Ready {
    fn change(&self, manager: &MemoryManager<'_, Bare>) -> Result<Sample, Skip> {
        let (pages, pools) = (manager.pages(), manager.huge_pools());
        let (case, wanted) = (self.case, self.case.wanted());
        resize(manager, HugeSize::Size1G, case.pages)?;
        let demote = || all_done(pools.demote(pages, NodeSet::ALL, case.pages));
        let promote = || all_done(pools.promote(pages, NodeSet::ALL, wanted));
        if case.way != Way::Demote {
            demote()?;
        }
        let used = if case.way == Way::PromoteScattered { scatter(pages, pools)? } else { Vec::new() };
        let (done, nanoseconds, counted) = match case.way {
            Way::Demote => self.ground.timed(manager, demote),
            Way::Promote | Way::PromoteScattered => self.ground.timed(manager, promote),
        };
        done?;
        let total = |size| pools.info(pages, size).total;
        let (large, gigantic) = (total(HugeSize::Size2M), total(HugeSize::Size1G));
        give(pages, pools, used);
        if gigantic * PARTS + large != case.pages * PARTS {
            return Err(Skip(format!(
                "{gigantic} pages of 1 GiB and {large} of 2 MiB are left of {}",
                case.pages
            )));
        }
        // Pages of 1 GiB that were demoted, or promoted.
        let changed = if case.way == Way::Demote { case.pages - gigantic } else { gigantic };
        let sample = Sample::new(nanoseconds / wanted as f64, changed).metric(REQUEST, nanoseconds);
        Ok(counted.add_to(sample))
    }
}

fn all_done(done: Demoted) -> Result<(), Skip> {
    match done.stopped {
        Some(why) => Err(Skip(format!("{} of {} pages of 1 GiB: {why:?}", done.done, done.wanted))),
        None => Ok(()),
    }
}

/// Puts the free pages of 2 MiB into random order and leaves one of every second 1 GiB in use; returns these.
fn scatter(pages: &PageAllocator<'_, Bare>, pools: &HugePools) -> Result<Vec<Frame>, Skip> {
    let mut taken = Vec::new();
    for _ in 0..pools.info(pages, HugeSize::Size2M).free {
        let frame = pools.take(pages, HugeSize::Size2M, NodeSet::ALL, false);
        taken.push(frame.map_err(|error| Skip::because("a free page of 2 MiB", error))?);
    }
    let mut firsts: Vec<Frame> =
        taken.iter().copied().filter(|frame| frame.is_aligned(Order::GIGANTIC)).collect();
    firsts.sort_unstable();
    let used: Vec<Frame> = firsts.into_iter().skip(1).step_by(2).collect();
    taken.retain(|frame| !used.contains(frame));
    fastrand::Rng::with_seed(SEED).shuffle(&mut taken);
    give(pages, pools, taken);
    Ok(used)
}

fn give(pages: &PageAllocator<'_, Bare>, pools: &HugePools, frames: Vec<Frame>) {
    frames.into_iter().for_each(|frame| pools.give_raw(pages, HugeSize::Size2M, frame, false));
}
