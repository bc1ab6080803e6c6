//! What DAMON's thread reports: at the end of an interval, for each region of each target, its addresses and how many
//! looks found its page accessed. The tracepoint is the same in all kernels that have DAMON's files in sysfs.

use std::os::fd::OwnedFd;

use perf_event_open_sys::bindings::{PERF_RECORD_LOST, PERF_RECORD_SAMPLE};

use super::line;
use crate::record::RecordError;
use crate::record::parse::{u32_at, u64_at};
use crate::record::perf;
use crate::record::ring::{RECORD_HEADER, Ring};
use crate::record::tracefs::{Field, Tracefs};
use crate::trace::{REGIONS_MAX, Region};

/// Room for a second of reports of the most regions.
const RING: usize = 1 << 20;

/// The tracepoint, and where its fields are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tracepoint {
    id: u64,
    pub(super) fields: Fields,
}

/// Where they are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields {
    pub(super) target: Field,
    /// Regions of the target.
    pub(super) number: Field,
    pub(super) start: Field,
    pub(super) end: Field,
    pub(super) accessed: Field,
}

impl Tracepoint {
    pub(super) fn find(tracefs: &Tracefs) -> Result<Self, RecordError> {
        let tracepoint = tracefs.tracepoint("damon/damon_aggregated")?;
        let fields = Fields {
            target: tracepoint.field("target_id")?,
            number: tracepoint.field("nr_regions")?,
            start: tracepoint.field("start")?,
            end: tracepoint.field("end")?,
            accessed: tracepoint.field("nr_accesses")?,
        };
        Ok(Self { id: tracepoint.id, fields })
    }
}

/// All regions of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) time_ns: u64,
    pub(super) target: usize,
    pub(super) regions: Vec<Region>,
}

/// The reports of one thread.
pub(super) struct Reports {
    ring: Ring,
    gathered: Gathered,
    thread: i32,
    /// Its time on a CPU when it was last read, and what of it no interval has.
    spent_ns: u64,
    cost_ns: Option<u64>,
    // Closed with this value, which ends the reports.
    _event: OwnedFd,
}

impl Reports {
    pub(super) fn open(tracepoint: &Tracepoint, thread: i32) -> Result<Self, String> {
        let event = perf::open_tracepoint(tracepoint.id, thread).map_err(|error| error.to_string())?;
        let ring = Ring::map(&event, RING).map_err(|error| format!("a ring for DAMON's reports: {error}"))?;
        let gathered = Gathered::new(tracepoint.fields);
        Ok(Self { ring, gathered, thread, spent_ns: 0, cost_ns: None, _event: event })
    }

    /// Calls `each` with the intervals that are whole, and with the thread's time on a CPU since the one before, if the
    /// kernel tells it.
    pub(super) fn take(&mut self, mut each: impl FnMut(Interval, Option<u64>)) {
        if let Some(now_ns) = time_of(self.thread) {
            let since = now_ns.saturating_sub(self.spent_ns);
            self.cost_ns = Some(self.cost_ns.unwrap_or(0) + since);
            self.spent_ns = now_ns;
        }
        let Self { ring, gathered, cost_ns, .. } = self;
        ring.drain(|record| {
            gathered.record(record).into_iter().for_each(|whole| each(whole, cost_ns.take()));
        });
    }
}

/// The time of a thread of the kernel on a CPU.
fn time_of(thread: i32) -> Option<u64> {
    line(format!("/proc/{thread}/schedstat"))?.split(' ').next()?.parse().ok()
}

/// Regions that are reported one by one.
pub(super) struct Gathered {
    fields: Fields,
    target: u64,
    regions: Vec<Region>,
}

impl Gathered {
    pub(super) const fn new(fields: Fields) -> Self {
        Self { fields, target: u64::MAX, regions: Vec::new() }
    }

    /// Takes a record; returns all regions of a target with the last of them. If records were lost, none of the
    /// interval is told.
    pub(super) fn record(&mut self, record: &[u8]) -> Option<Interval> {
        match u32_at(record, 0)? {
            PERF_RECORD_LOST => self.regions.clear(),
            PERF_RECORD_SAMPLE => return self.sample(record.get(RECORD_HEADER..)?),
            _ => {}
        }
        None
    }

    /// Event number, pid, tid, time, and the length of the tracepoint's data.
    fn sample(&mut self, body: &[u8]) -> Option<Interval> {
        let time_ns = u64_at(body, 16)?;
        let data = body.get(28..)?;
        let Fields { target, number, start, end, accessed } = self.fields;
        let [target, number] = [target.read(data)?, number.read(data)?];
        let [start, end, accessed] = [start.read(data)?, end.read(data)?, accessed.read(data)?];
        let follows = self.regions.last().is_none_or(|before| before.end() <= start);
        if target != self.target || !follows {
            // The rest of the interval before was lost.
            self.regions.clear();
        }
        self.target = target;
        if start < end && self.regions.len() < REGIONS_MAX {
            self.regions.push(Region { start, len: end - start, accessed: accessed as u32 });
        }
        let whole = self.regions.len() as u64 == number;
        let target = usize::try_from(target).ok()?;
        whole.then(|| Interval { time_ns, target, regions: std::mem::take(&mut self.regions) })
    }
}
