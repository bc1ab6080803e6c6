//! Huge pages of a pool: what the program maps of them, and how many would carry its large mappings.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::baseline::Change;
use super::case::Case;
use super::lines::{labelled, listed};
use super::verdict::{AdviseRequest, Verdict};
use super::ways::Runtime;
use super::words::{Names, count, size, time};
use crate::host::pools::Pool;
use crate::replay::{Part, PartKind, STEPS, Trial};

/// The sizes of huge pages: name, bytes, and the directory of the pool.
const SIZES: [(&str, u64, &str); 2] =
    [("2M", 2 << 20, "hugepages-2048kB"), ("1G", 1 << 30, "hugepages-1048576kB")];
/// A mapping with fewer bytes is not worth a pool.
const LARGE: u64 = 32 << 20;

/// Everything about huge pages of pools.
pub(super) struct Pools {
    /// The most pages that the program itself mapped at once, by size.
    used: [u64; 2],
    /// Mappings of huge pages that Linux refused.
    refused: u64,
    /// Mappings that huge pages would carry, by their figures under single frames, and the pages of each by size; none of 1
    /// GiB where too much of them would stay untouched.
    carried: Vec<(Part, [Option<u64>; 2])>,
    /// What these save under the baseline.
    faults: u64,
    time_ns: f64,
    tables: u64,
    /// For each size that is needed, the command for its pool.
    changes: Vec<Change>,
}

impl Pools {
    /// `None` if the program maps no huge pages, and none would carry a mapping.
    pub(super) fn of(trial: &Trial, verdict: &Verdict, request: AdviseRequest<'_>) -> Option<Self> {
        let (used, refused) = trial.huge();
        let frames = verdict.cases.iter().find(|case| case.set().orders().next().is_none())?;
        // The replay takes huge pages of pools for other memory.
        let uses = used.iter().any(|pages| *pages > 0);
        let parts = frames.figures.parts.iter().filter(|part| !uses && suits(part, request.most_waste));
        let with_pages = |part: &Part| {
            let pages = pages(part, request.most_waste);
            pages[0].map(|_| (part.clone(), pages))
        };
        let carried: Vec<_> = parts.filter_map(with_pages).collect();
        let before = |case: &Case, part: &Part| -> (u64, f64) {
            let part = case.part(part);
            part.map_or((0, 0.0), |part| (part.faults(), case.ns(part)))
        };
        let (mut faults, mut time_ns, mut tables) = (0, 0.0, 0);
        for (part, [small, _]) in &carried {
            let (now, ns) = before(verdict.baseline(), part);
            let pages = small.unwrap_or(0);
            faults += now.saturating_sub(pages);
            time_ns += ns - pages as f64 * verdict.prices.folios[9];
            // A huge page of 2 MiB needs no page table.
            tables += pages * 4096;
        }
        let mut needed = used;
        carried.iter().for_each(|(_, pages)| needed[0] += pages[0].unwrap_or(0));
        let of_size = |at: usize| (needed[at] > 0).then(|| change(request.pools, at, needed[at])).flatten();
        let changes = (0..SIZES.len()).filter_map(of_size).collect();
        let found = uses || refused > 0 || !carried.is_empty();
        found.then_some(Self { used, refused, carried, faults, time_ns, tables, changes })
    }

    /// Pages that the mappings need, if all are of this size.
    fn needed(&self, at: usize) -> Option<u64> {
        (!self.carried.is_empty()).then(|| self.carried.iter().map(|(_, pages)| pages[at]).sum()).flatten()
    }
}

/// Whether a mapping is large, private and anonymous, mapped half of the time, and touched in full but for `most_waste` by all
/// processes together.
fn suits(part: &Part, most_waste: f64) -> bool {
    let kind = matches!(part.key.kind, PartKind::Heap | PartKind::Anonymous(_));
    // One process alone may have had more mapped at another moment than all have at the peak.
    let mapped = part.all_mapped.max(part.mapped);
    let touched = part.all_present as f64 >= mapped as f64 * (1.0 - most_waste);
    kind && part.mapped >= LARGE && part.steps * 2 >= STEPS && touched
}

/// The pages that carry a mapping, by size; `None` where more than `most_waste` of them would be beyond it.
fn pages(part: &Part, most_waste: f64) -> [Option<u64>; 2] {
    // Linux reserves what is not touched too. What processes share after a fork is there once, until one copies it.
    let bytes = part.mapped.max(part.resident + part.all_mapped.saturating_sub(part.all_present));
    SIZES.map(|(_, page, _)| {
        let pages = bytes.div_ceil(page);
        (bytes as f64 >= (pages * page) as f64 * (1.0 - most_waste)).then_some(pages)
    })
}

/// Makes a pool have so many free pages that are not reserved for mappings of other programs; `None` if this kernel has no such
/// pool, or it has them.
fn change(pools: &Path, at: usize, wanted: u64) -> Option<Change> {
    let path: PathBuf = pools.join(SIZES[at].2);
    let Pool { all, free } = Pool::read(&path)?;
    let more = wanted.checked_sub(free).filter(|more| *more > 0)?;
    let echo = |pages: u64| format!("echo {pages} > {}", path.join("nr_hugepages").display());
    Some(Change { run: echo(all + more), undo: echo(all) })
}

/// For readers.
pub(super) fn text(pools: &Pools, trial: &Trial, names: &Names<'_>) -> String {
    let mut text = String::new();
    let used = pools.used.iter().zip(SIZES).filter(|(pages, _)| **pages > 0);
    let used: Vec<String> =
        used.map(|(pages, (name, ..))| format!("{} pages of {name}", count(*pages))).collect();
    if !used.is_empty() {
        let said = format!(
            "the program maps {} by itself at the most; so many must be in the pool",
            used.join(" and ")
        );
        text += &labelled("hugetlb:", &said);
    }
    if pools.refused > 0 {
        let said =
            format!("{} mappings of huge pages were refused: the pool was too small", count(pools.refused));
        text += &labelled("hugetlb:", &said);
    }
    if let Some(small) = pools.needed(0) {
        let mut parts: Vec<&Part> = pools.carried.iter().map(|(part, _)| part).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.mapped));
        let more = parts.len().saturating_sub(2);
        let shown: Vec<String> = parts.into_iter().take(2).map(|part| names.prose(part)).collect();
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let large = pools.needed(1).map_or_else(String::new, |pages| format!(", or {} of 1G", count(pages)));
        let said = format!(
            "{} pages of 2M{large} carry what is large, lives long and is touched in full: {}{more}. They save {} faults \
             ({}) and {} of page tables, and cannot fail for want of 2 MiB in one piece",
            count(small),
            shown.join("; "),
            count(pools.faults),
            time(pools.time_ns.max(0.0)),
            size(pools.tables),
        );
        text += &labelled("hugetlb:", &said);
        let needs = format!(
            "{} set aside before the program starts, also while it does not run; and that it asks: {}",
            size(small * SIZES[0].1),
            Runtime::of(&trial.files()).asks_for_pool()
        );
        text += &labelled("needs:", &needs);
    }
    text += &listed("pool:", pools.changes.iter().map(|change| change.run.as_str()));
    text + &listed("undo:", pools.changes.iter().map(|change| change.undo.as_str()))
}

/// For programs.
pub(super) fn json(pools: &Pools, names: &Names<'_>) -> Value {
    let carried = |(part, pages): &(Part, [Option<u64>; 2])| {
        json!({
            "program": names.program(part),
            "kind": Names::kind(part),
            "address": part.address,
            "mapped_bytes": part.mapped,
            "resident_bytes": part.resident,
            "pages_2m": pages[0],
            "pages_1g": pages[1],
        })
    };
    json!({
        "used_2m": pools.used[0],
        "used_1g": pools.used[1],
        "refused": pools.refused,
        "mappings": pools.carried.iter().map(carried).collect::<Vec<_>>(),
        "pages_2m": pools.needed(0),
        "pages_1g": pools.needed(1),
        "faults_saved": pools.faults,
        "time_saved_ns": pools.time_ns,
        "page_tables_saved_bytes": pools.tables,
        "do": pools.changes.iter().map(|change| &change.run).collect::<Vec<_>>(),
        "undo": pools.changes.iter().map(|change| &change.undo).collect::<Vec<_>>(),
    })
}
