//! The works that stand for the five systems: the same cases that `quire bench` measures, one or a few for each.

use anyhow::{Result, bail};

use crate::bench::experiment::Experiment;
use crate::bench::experiments::{
    clear, collapse, collapse_thp, hugetlb_pool, mapcount, mlock_gigantic, page_alloc, unmap,
};
use crate::bench::published;

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
        let figures = published::figures(self.system)?;
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

const fn hvo(case: &'static str) -> Option<Published> {
    Some(Published { system: "hvo", case, before: "hvo=1 before", after: "hvo=1 batched" })
}

const fn zap(case: &'static str) -> Option<Published> {
    Some(Published { system: "zap", case, before: "before", after: "batched" })
}

/// The kernel's part of a page that a program gets or gives back.
const FAULT: &str = "a page fault or system call, and clearing";

/// Every line, in the order of the systems.
pub(super) const WORKS: [Work; 14] = [
    Work {
        system: POOLS,
        what: "grow by 1000, a page",
        experiment: &hugetlb_pool::EXPERIMENT,
        case: ("grow/1000/fresh", "grow/20/fresh"),
        kernel: Some("linux-saving"),
        more: "a write to /proc",
        published: hvo("alloc 524288 x 2MiB"),
        seconds: 1,
    },
    Work {
        system: POOLS,
        what: "shrink by 1000, a page",
        experiment: &hugetlb_pool::EXPERIMENT,
        case: ("shrink/1000/fresh", "shrink/20/fresh"),
        kernel: Some("linux-saving"),
        more: "a write to /proc",
        published: hvo("free 524288 x 2MiB"),
        seconds: 1,
    },
    Work {
        system: PIECES,
        what: "collapse 1 GiB to a leaf",
        experiment: &collapse::EXPERIMENT,
        case: ("direct", "direct"),
        kernel: None,
        more: "",
        published: None,
        seconds: 6,
    },
    Work {
        system: PIECES,
        what: "map 1 GiB by 4 KiB",
        experiment: &mapcount::EXPERIMENT,
        case: ("map", "map"),
        kernel: None,
        more: "",
        published: None,
        seconds: 6,
    },
    Work {
        system: PIECES,
        what: "collapse 1 GiB to 2 MiB",
        experiment: &collapse_thp::EXPERIMENT,
        case: ("4KiB", "4KiB"),
        kernel: Some("linux"),
        more: "a system call",
        published: None,
        seconds: 6,
    },
    Work {
        system: LISTS,
        what: "page allocated, freed",
        experiment: &page_alloc::EXPERIMENT,
        case: ("pair", "pair"),
        kernel: Some("linux"),
        more: FAULT,
        published: Some(Published {
            system: "pcp",
            case: "alloc order-0 batch 1",
            before: "vanilla",
            after: "irqsafe",
        }),
        seconds: 1,
    },
    Work {
        system: LISTS,
        what: "16384 in bulk, a page",
        experiment: &page_alloc::EXPERIMENT,
        case: ("bulk-alloc/16384", "bulk-alloc/16384"),
        kernel: Some("linux"),
        more: FAULT,
        published: None,
        seconds: 1,
    },
    Work {
        system: LISTS,
        what: "random free, a page",
        experiment: &page_alloc::EXPERIMENT,
        case: ("random-free/16384", "random-free/16384"),
        kernel: Some("linux"),
        more: FAULT,
        published: None,
        seconds: 1,
    },
    Work {
        system: TEARDOWN,
        what: "folios of 4 KiB",
        experiment: &unmap::EXPERIMENT,
        case: ("4KiB", "4KiB"),
        kernel: Some("linux"),
        more: "a system call",
        published: zap("munmap 1GiB folio 4KiB"),
        seconds: 6,
    },
    Work {
        system: TEARDOWN,
        what: "folios of 64 KiB",
        experiment: &unmap::EXPERIMENT,
        case: ("64KiB", "64KiB"),
        kernel: Some("linux"),
        more: "a system call",
        published: zap("munmap 1GiB folio 64KiB"),
        seconds: 6,
    },
    Work {
        system: TEARDOWN,
        what: "2 MiB mapped by PTEs",
        experiment: &unmap::EXPERIMENT,
        case: ("2MiB-pte", "2MiB-pte"),
        kernel: Some("linux"),
        more: "a system call",
        published: zap("munmap 1GiB folio 2048KiB"),
        seconds: 6,
    },
    Work {
        system: TEARDOWN,
        what: "2 MiB mapped by PMDs",
        experiment: &unmap::EXPERIMENT,
        case: ("2MiB-pmd", "2MiB-pmd"),
        kernel: Some("linux"),
        more: "a system call",
        published: None,
        seconds: 6,
    },
    Work {
        system: CLEARING,
        what: "in one extent",
        experiment: &clear::EXPERIMENT,
        case: ("1GiB", "2MiB"),
        kernel: None,
        more: "",
        published: Some(Published {
            system: "clear",
            case: "per 1GiB page",
            before: "clear_page_erms",
            after: "clear_page_nt",
        }),
        seconds: 38,
    },
    Work {
        system: CLEARING,
        what: "mlock of a pool page",
        experiment: &mlock_gigantic::EXPERIMENT,
        case: ("1GiB", "16MiB"),
        kernel: Some("linux"),
        more: "a system call",
        published: None,
        seconds: 22,
    },
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

impl Work {
    /// The case that a run of this size has.
    pub(crate) fn case_at(&self, smoke: bool) -> &'static str {
        if smoke { self.case.1 } else { self.case.0 }
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
                minutes: minutes_of(work.experiment.name),
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

/// How long all cases of an experiment took on two CPUs, eleven rounds each.
fn minutes_of(experiment: &str) -> u64 {
    match experiment {
        "hugetlb-pool" | "mlock-gigantic" => 12,
        "page-alloc" | "clear" => 8,
        "unmap" => 5,
        _ => 2,
    }
}
