//! The works that stand for the five systems: the same cases that `quire bench` measures, one or a few for each.

use anyhow::{Result, bail};

use crate::bench::experiment::Experiment;
use crate::bench::experiments::{
    self, clear, collapse, collapse_thp, hugetlb_pool, mapcount, mlock_gigantic, page_alloc, unmap,
};
use crate::bench::published::figures;

/// A line of the table.
pub(crate) struct Work {
    /// The system, as its name is shown.
    pub system: &'static str,
    /// What is done, and what one figure is of; short, since the table must fit 80 columns.
    pub what: &'static str,
    pub experiment: &'static Experiment,
    /// The case of the experiment, and the one that a smoke run has in its place.
    pub case: (&'static str, &'static str),
    /// The arm that does the same on the running kernel.
    pub kernel: Option<&'static str>,
    /// What else the kernel's figure contains.
    pub more: &'static str,
    pub published: Option<Published>,
    /// How long a quick run takes for it on two CPUs.
    pub seconds: u64,
}

/// Two published figures of the same work: before the published change and after.
pub(crate) struct Published {
    system: &'static str,
    case: &'static str,
    before: &'static str,
    after: &'static str,
}

impl Published {
    /// How many times as fast the change made it, and whose figures they are.
    ///
    /// # Errors
    /// When the bundled figures are malformed, which a test rules out.
    pub(crate) fn times(&self) -> Result<Option<(f64, String)>> {
        let figures = figures(self.system)?;
        let of = |variant: &str| {
            figures.iter().find(|figure| figure.case == self.case && figure.variant == variant)
        };
        let (Some(before), Some(after)) = (of(self.before), of(self.after)) else { return Ok(None) };
        let (Some(slow), Some(fast)) = (before.number(), after.number()) else { return Ok(None) };
        Ok(Some((slow / fast, after.source.clone())))
    }
}

const POOLS: &str = "1 pools of 2 MiB (HVO)";
const PIECES: &str = "2 pieces (HGM)";
const LISTS: &str = "3 per-CPU lists";
const TEARDOWN: &str = "4 teardown: munmap 1 GiB";
const CLEARING: &str = "5 clearing 1 GiB";

const fn published(
    system: &'static str,
    case: &'static str,
    before: &'static str,
    after: &'static str,
) -> Published {
    Published { system, case, before, after }
}

const fn hvo(case: &'static str) -> Published {
    published("hvo", case, "hvo=1 before", "hvo=1 batched")
}

const fn zap(case: &'static str) -> Published {
    published("zap", case, "before", "batched")
}

/// What a process cannot have without the rest of a page fault.
const FAULT: &str = "a page fault or system call, and clearing";
const CALL: &str = "a system call";
/// What the kernel does for each folio of a process besides its page tables and counts.
const KERNEL: &str = "a system call, the LRU lists, control groups, statistics and flushes of the TLB";
const POOL: &str = "a write to /proc, and frames of a machine that has been running";

impl Work {
    /// A work that takes so many seconds; the case has the same name in a smoke run.
    const fn new(
        system: &'static str,
        what: &'static str,
        experiment: &'static Experiment,
        case: &'static str,
        seconds: u64,
    ) -> Self {
        let case = (case, case);
        Self { system, what, experiment, case, kernel: None, more: "", published: None, seconds }
    }

    const fn smoke(self, case: &'static str) -> Self {
        Self { case: (self.case.0, case), ..self }
    }

    const fn kernel(self, arm: &'static str, more: &'static str) -> Self {
        Self { kernel: Some(arm), more, ..self }
    }

    const fn published(self, published: Published) -> Self {
        Self { published: Some(published), ..self }
    }

    /// Whether the kernel's figure is of the same work, but for what a note names. A ratio to one that contains a fault would
    /// say nothing.
    pub(crate) fn is_comparable(&self) -> bool {
        self.more != FAULT
    }

    /// The case that a run of this size has.
    pub(crate) fn case_at(&self, smoke: bool) -> &'static str {
        if smoke { self.case.1 } else { self.case.0 }
    }
}

/// Every line, in the order of the systems.
pub(super) const WORKS: [Work; 14] =
    [
        Work::new(POOLS, "grow by 1000, a page", &hugetlb_pool::EXPERIMENT, "grow/1000/fresh", 1)
            .smoke("grow/20/fresh")
            .kernel("linux-saving", POOL)
            .published(hvo("alloc 524288 x 2MiB")),
        Work::new(POOLS, "shrink by 1000, a page", &hugetlb_pool::EXPERIMENT, "shrink/1000/fresh", 1)
            .smoke("shrink/20/fresh")
            .kernel("linux-saving", POOL)
            .published(hvo("free 524288 x 2MiB")),
        Work::new(PIECES, "collapse 1 GiB to a leaf", &collapse::EXPERIMENT, "direct", 4),
        Work::new(PIECES, "map 1 GiB by 4 KiB", &mapcount::EXPERIMENT, "map", 4),
        Work::new(PIECES, "collapse 1 GiB to 2 MiB", &collapse_thp::EXPERIMENT, "4KiB", 4)
            .kernel("linux", KERNEL),
        Work::new(LISTS, "page allocated, freed", &page_alloc::EXPERIMENT, "pair", 2)
            .kernel("linux", FAULT)
            .published(published("pcp", "total order-0 batch 1", "vanilla", "irqsafe")),
        Work::new(LISTS, "16384 in bulk, a page", &page_alloc::EXPERIMENT, "bulk-alloc/16384", 2)
            .smoke("bulk-alloc/1024")
            .kernel("linux", FAULT),
        Work::new(LISTS, "random free, a page", &page_alloc::EXPERIMENT, "random-free/16384", 2)
            .smoke("random-free/1024")
            .kernel("linux", FAULT),
        Work::new(TEARDOWN, "folios of 4 KiB", &unmap::EXPERIMENT, "4KiB/cold", 3)
            .kernel("linux", KERNEL)
            .published(zap("munmap 1GiB folio 4KiB")),
        Work::new(TEARDOWN, "folios of 64 KiB", &unmap::EXPERIMENT, "64KiB/cold", 3)
            .kernel("linux", KERNEL)
            .published(zap("munmap 1GiB folio 64KiB")),
        Work::new(TEARDOWN, "2 MiB mapped by PTEs", &unmap::EXPERIMENT, "2MiB-pte/cold", 3)
            .kernel("linux", KERNEL)
            .published(zap("munmap 1GiB folio 2048KiB")),
        Work::new(TEARDOWN, "2 MiB mapped by PMDs", &unmap::EXPERIMENT, "2MiB-pmd/cold", 3)
            .kernel("linux", KERNEL),
        Work::new(CLEARING, "in one extent", &clear::EXPERIMENT, "1GiB", 32)
            .smoke("2MiB")
            .published(published("clear", "per 1GiB page", "clear_page_erms", "clear_page_nt")),
        Work::new(CLEARING, "mlock of a pool page", &mlock_gigantic::EXPERIMENT, "1GiB", 20)
            .smoke("16MiB")
            .kernel("linux", CALL),
    ];

/// The works of one experiment, and how many minutes all of its cases take.
pub(crate) struct Group {
    pub experiment: &'static Experiment,
    pub works: Vec<&'static Work>,
    pub minutes: u64,
}

impl Group {
    /// The cases of its works.
    pub(crate) fn cases(&self, smoke: bool) -> Vec<&'static str> {
        self.works.iter().map(|work| work.case_at(smoke)).collect()
    }
}

/// The works of systems whose names contain `only`, by experiment.
///
/// # Errors
/// When there is none.
pub(crate) fn groups(only: &str) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for work in WORKS.iter().filter(|work| work.system.contains(only)) {
        match groups.iter_mut().find(|group| std::ptr::eq(group.experiment, work.experiment)) {
            Some(group) => group.works.push(work),
            None => groups.push(Group {
                experiment: work.experiment,
                works: vec![work],
                minutes: experiments::minutes(work.experiment.name),
            }),
        }
    }
    if groups.is_empty() {
        let mut systems: Vec<&str> = WORKS.iter().map(|work| work.system).collect();
        systems.dedup();
        bail!("no system has `{only}` in its name: choose from {}", systems.join(", "));
    }
    Ok(groups)
}
