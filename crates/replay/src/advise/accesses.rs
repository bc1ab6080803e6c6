//! What DAMON saw the program access, from the recording: how many bytes of which mappings from one look to the next.
//!
//! A region of which a share of the looks found the sampled page accessed counts as accessed for that share of its bytes.
//! What is mapped of the region has them in proportion.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use crate::record::{Referenced, ReferencedMapping, ReferencedProcess};
use crate::trace::{Accesses, Event, EventKind, Layouts, Mapping, PathId, TraceError, TraceReader};

/// Neighbours in a mapping are told as one if their shares are no farther apart.
const ALIKE: f64 = 0.2;

/// How DAMON looked at the process that accesses most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Damon {
    /// Regions in the interval of the median.
    pub(super) regions: usize,
    /// From one look to the next, as it was asked for.
    pub(super) sample: Duration,
    /// Looks that make an interval.
    pub(super) samples: u32,
    /// Whether the kernel tells what looking cost.
    pub(super) knows_cost: bool,
}

/// What is known of a process before its median is.
#[derive(Default)]
struct Watched {
    /// Accessed bytes of each interval.
    bytes: Vec<u64>,
    /// The times of the first and the last interval's end.
    span_ns: Option<(u64, u64)>,
}

/// What the process accesses that accesses most in the median of its intervals; `None` if the recording has no accesses.
///
/// # Errors
/// As those of the reader.
pub(super) fn of(path: &Path) -> Result<Option<(Referenced, Damon)>, TraceError> {
    let mut all: BTreeMap<u32, Watched> = BTreeMap::new();
    let (mut spent, mut span_ns) = (None, None);
    walk(path, |moment, event, accesses| {
        let watched = all.entry(event.pid).or_default();
        let pieces = pieces(&moment.layouts, event.pid, accesses);
        watched.bytes.push(pieces.iter().map(|(_, piece)| piece.bytes).sum());
        widen(&mut watched.span_ns, event.time_ns);
        widen(&mut span_ns, event.time_ns);
        spent = accesses.cost_ns.map(|cost| spent.unwrap_or(0) + cost).or(spent);
        true
    })?;
    let most = all.iter().max_by_key(|(pid, watched)| (watched.median().0, Reverse(**pid)));
    let Some((&pid, watched)) = most else { return Ok(None) };
    let median_is = watched.median().1;
    let (mut nth, mut found) = (0, None);
    walk(path, |moment, event, accesses| {
        if event.pid == pid {
            if nth == median_is {
                let pieces = merged(pieces(&moment.layouts, pid, accesses));
                found = Some((named(&moment.reader, pieces), moment.program(pid), accesses.clone()));
            }
            nth += 1;
        }
        found.is_none()
    })?;
    let Some((median, program, accesses)) = found else { return Ok(None) };
    let Accesses { sample_ns, samples, regions, .. } = accesses;
    let asked_ns = sample_ns.saturating_mul(samples.into());
    let ((first, last), gaps) = (watched.span_ns.unwrap_or_default(), watched.bytes.len() as u64 - 1);
    // A busy kernel looks less often than it is asked to.
    let looked = (last - first).checked_div(gaps.saturating_mul(samples.into())).unwrap_or(sample_ns);
    let process = ReferencedProcess {
        pid: pid as i32,
        program,
        intervals: watched.bytes.len() as u64,
        most: watched.bytes.iter().copied().max().unwrap_or(0),
        median,
    };
    let (first, last) = span_ns.unwrap_or_default();
    let referenced = Referenced {
        process: Some(process),
        interval: Duration::from_nanos(looked.max(sample_ns)),
        spent: Duration::from_nanos(spent.unwrap_or(0)),
        sampled: Duration::from_nanos((last - first).saturating_add(asked_ns)),
        ..Referenced::default()
    };
    let sample = Duration::from_nanos(sample_ns);
    Ok(Some((referenced, Damon { regions: regions.len(), sample, samples, knows_cost: spent.is_some() })))
}

impl Watched {
    /// The bytes of the median interval, and which of them it is.
    fn median(&self) -> (u64, usize) {
        let mut order: Vec<(u64, usize)> = self.bytes.iter().copied().zip(0..).collect();
        let at = order.len() / 2;
        order.select_nth_unstable(at).1.to_owned()
    }
}

fn widen(span_ns: &mut Option<(u64, u64)>, time_ns: u64) {
    *span_ns = Some((span_ns.map_or(time_ns, |(first, _)| first), time_ns));
}

/// The processes at one moment of a recording.
struct Moment {
    reader: TraceReader,
    layouts: Layouts,
    /// The program of each.
    programs: HashMap<u32, PathId>,
}

/// Calls `each` with all that DAMON saw, until it returns false.
fn walk(path: &Path, mut each: impl FnMut(&Moment, &Event, &Accesses) -> bool) -> Result<(), TraceError> {
    let reader = TraceReader::open(path)?;
    let mut moment = Moment { reader, layouts: Layouts::default(), programs: HashMap::new() };
    while let Some(event) = moment.reader.next().transpose()? {
        match &event.kind {
            EventKind::Accesses(accesses) => {
                if !each(&moment, &event, accesses) {
                    break;
                }
                continue;
            }
            EventKind::Exec { name } => _ = moment.programs.insert(event.pid, *name),
            EventKind::Fork { child_pid, .. } => {
                if let Some(name) = moment.programs.get(&event.pid).copied() {
                    moment.programs.insert(*child_pid, name);
                }
            }
            _ => {}
        }
        moment.layouts.apply(&event);
    }
    Ok(())
}

impl Moment {
    fn program(&self, pid: u32) -> String {
        let name = self.programs.get(&pid).and_then(|name| self.reader.path(*name));
        name.unwrap_or_default().to_owned()
    }
}

/// A part of a mapping.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    len: u64,
    /// Its bytes that were accessed.
    bytes: u64,
}

impl Piece {
    fn share(&self) -> f64 {
        self.bytes as f64 / self.len.max(1) as f64
    }
}

/// What of the mappings was accessed, by address.
fn pieces(layouts: &Layouts, pid: u32, accesses: &Accesses) -> Vec<(Mapping, Piece)> {
    let parts = layouts.accessed(pid, accesses).into_iter();
    let piece = |(part, share): (Mapping, f64)| {
        let (start, len) = (part.start, part.end - part.start);
        let whole = layouts.find(pid, start).unwrap_or(part);
        (whole, Piece { start, len, bytes: (len as f64 * share) as u64 })
    };
    parts.map(piece).collect()
}

/// Joins neighbours of one mapping that are accessed alike.
fn merged(pieces: Vec<(Mapping, Piece)>) -> Vec<(Mapping, Piece)> {
    let mut found: Vec<(Mapping, Piece)> = Vec::new();
    for (mapping, piece) in pieces {
        match found.last_mut() {
            Some((of, last))
                if *of == mapping
                    && last.start + last.len == piece.start
                    && (last.share() - piece.share()).abs() <= ALIKE =>
            {
                last.len += piece.len;
                last.bytes += piece.bytes;
            }
            _ => found.push((mapping, piece)),
        }
    }
    found
}

fn named(reader: &TraceReader, pieces: Vec<(Mapping, Piece)>) -> Vec<ReferencedMapping> {
    let name = |mapping: &Mapping| mapping.file.and_then(|file| reader.path(file.path)).unwrap_or_default();
    let named = |(mapping, Piece { start, len, bytes }): (Mapping, Piece)| ReferencedMapping {
        name: name(&mapping).to_owned(),
        start,
        len,
        within: mapping.start..mapping.end,
        // Shared memory has a file.
        anonymous: mapping.file.is_none(),
        referenced: bytes,
        large: 0,
    };
    pieces.into_iter().map(named).collect()
}
