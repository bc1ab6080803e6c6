//! Accesses of memory by address and time, where a recording has them; and otherwise first touches, as its faults show
//! them.

mod accesses;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::error::ReplayError;
use super::timeline::STEPS;
use crate::trace::{EventKind, PathId, TraceReader};

/// Rows of one map.
const ROWS: usize = 64;
/// Bytes of a row at least.
const ROW: u64 = 2 << 20;

/// Where a map comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// What DAMON saw.
    Damon,
    /// Faults for pages that were missing.
    FirstTouches,
}

/// The process with the most accesses or touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heat {
    pub(crate) source: Source,
    pub(crate) pid: u32,
    /// The last program that it ran.
    pub(crate) program: Option<PathId>,
    /// By address. What lies between two rows was never accessed.
    pub(crate) rows: Vec<Row>,
}

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Pages that were touched in each step of the recorded time; of accesses those from one look to the next, in the mean.
    pub(crate) pages: Vec<u64>,
}

/// Of one process: for each 2 MiB the pages that were touched, by step.
type Touches = BTreeMap<u64, [u64; STEPS as usize]>;

impl Heat {
    /// That of a trace whose first and last events have these times; `None` without a fault.
    ///
    /// # Errors
    /// As those of the reader.
    pub(super) fn of(path: &Path, (first_ns, last_ns): (u64, u64)) -> Result<Option<Self>, ReplayError> {
        let mut all: HashMap<u32, (u64, Touches)> = HashMap::new();
        let mut programs: HashMap<u32, PathId> = HashMap::new();
        let span = u128::from(last_ns - first_ns) + 1;
        let mut has_accesses = false;
        for event in TraceReader::open(path)? {
            let event = event?;
            let addr = match event.kind {
                EventKind::Exec { name } => {
                    programs.insert(event.pid, name);
                    continue;
                }
                EventKind::Accesses(_) => {
                    has_accesses = true;
                    continue;
                }
                _ if event.kind.is_unresolved() => continue,
                // A page that was there and could not be written to was touched before.
                EventKind::Fault { addr, protection: false, .. } => addr,
                _ => continue,
            };
            let passed = u128::from(event.time_ns.saturating_sub(first_ns)) * u128::from(STEPS);
            let step = (passed / span).min(u128::from(STEPS) - 1) as usize;
            let (count, touches) = all.entry(event.pid).or_default();
            *count += 1;
            touches.entry(addr / ROW).or_insert([0; STEPS as usize])[step] += 1;
        }
        let found = if has_accesses { accesses::rows(path, (first_ns, last_ns))? } else { None };
        if let Some((pid, rows)) = found.filter(|(_, rows)| !rows.is_empty()) {
            let program = programs.get(&pid).copied();
            return Ok(Some(Self { source: Source::Damon, pid, program, rows }));
        }
        let most = all.into_iter().max_by_key(|(pid, (count, _))| (*count, std::cmp::Reverse(*pid)));
        Ok(most.map(|(pid, (_, touches))| Self {
            source: Source::FirstTouches,
            pid,
            program: programs.get(&pid).copied(),
            rows: rows(&touches),
        }))
    }
}

/// The rows of one process.
fn rows(touches: &Touches) -> Vec<Row> {
    let row = |(block, pages): (&u64, &[u64; STEPS as usize])| Row {
        start: block * ROW,
        end: (block + 1) * ROW,
        pages: pages.to_vec(),
    };
    joined(&touches.iter().map(row).collect::<Vec<_>>())
}

/// Joins neighbours, so that few rows are left.
fn joined(all: &[Row]) -> Vec<Row> {
    let join = |several: &[Row]| {
        let sum = |step: usize| several.iter().map(|row| row.pages[step]).sum();
        let (first, last) = (&several[0], &several[several.len() - 1]);
        Row { start: first.start, end: last.end, pages: (0..STEPS as usize).map(sum).collect() }
    };
    all.chunks(all.len().div_ceil(ROWS).max(1)).map(join).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_few_and_lose_nothing() {
        let touches: Touches = (0..200).map(|block| (block * 3, [block; STEPS as usize])).collect();
        let rows = rows(&touches);
        assert!(rows.len() <= ROWS && rows.len() > ROWS / 2, "{}", rows.len());
        assert!(rows.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let sum: u64 = rows.iter().flat_map(|row| &row.pages).sum();
        assert_eq!(sum, (0..200).sum::<u64>() * STEPS);
        assert_eq!((rows[0].start, rows[0].end), (0, 10 << 21), "blocks 0, 3, 6 and 9");
        assert!(self::rows(&Touches::new()).is_empty());
    }
}
