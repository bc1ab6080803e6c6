//! Samples what processes reference: clears the accessed bits of their pages, and reads after an interval how many bytes of
//! each mapping have the bit again.
//!
//! `/proc/PID/clear_refs` clears the bits of a process; `smaps` sums them for each mapping. Both walk its page tables, so their
//! time is measured, and the interval grows until that is a small share of it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::{present, proc_files};

/// A process is not sampled if one of the two takes longer than this: a call that changes its mappings waits meanwhile.
const LONGEST: Duration = Duration::from_millis(500);

const MAP_PRIVATE: u32 = 0x2;

/// How to sample.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The least time between two readings.
    pub interval: Duration,
    /// The share of the time that clearing and reading may take.
    pub max_overhead: f64,
}

/// What was referenced.
#[derive(Clone, Debug, Default)]
pub struct Referenced {
    /// The process that referenced most in the median of its intervals.
    pub process: Option<ReferencedProcess>,
    /// The mean interval.
    pub interval: Duration,
    /// Clearing and reading, of all processes.
    pub spent: Duration,
    /// The longest clearing or reading of one process.
    pub longest: Duration,
    /// From the first clearing to the end.
    pub sampled: Duration,
    /// Processes that take too long.
    pub left_out: usize,
    /// Why bits could not be cleared or read.
    pub refused: Option<String>,
}

/// A process.
#[derive(Clone, Debug)]
pub struct ReferencedProcess {
    /// Its number.
    pub pid: i32,
    /// Its name.
    pub program: String,
    /// Its intervals.
    pub intervals: u64,
    /// The most bytes that it referenced in one.
    pub most: u64,
    /// What it referenced in the median of them.
    pub median: Vec<ReferencedMapping>,
}

/// A mapping, or a part of one, at the end of an interval.
#[derive(Clone, Debug)]
pub struct ReferencedMapping {
    /// As `maps` shows it; empty for anonymous memory.
    pub name: String,
    /// Its first address.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The mapping that it is, or is a part of.
    pub within: Range<u64>,
    /// Whether it is private anonymous memory.
    pub anonymous: bool,
    /// Bytes of pages that were referenced in the interval.
    pub referenced: u64,
    /// Bytes under leaves of 2 MiB, each of which has one bit for all of them.
    pub large: u64,
}

/// The sampling in progress.
struct Sampler {
    found: Referenced,
    living: HashMap<i32, Living>,
    too_large: HashSet<i32>,
    /// Number and time of all intervals.
    intervals: (u32, Duration),
}

/// A process that lives.
struct Living {
    cleared: Instant,
    program: String,
    intervals: u64,
    most: u64,
    /// What it referenced in every so-many-th interval, to find the median in bounded memory.
    kept: Vec<Vec<ReferencedMapping>>,
    every: u64,
}

/// Intervals that are kept of a process.
const KEPT: usize = 128;

/// Sampling by a thread of its own.
pub(super) struct Running<'s> {
    going_on: Sender<()>,
    thread: ScopedJoinHandle<'s, Referenced>,
}

/// Starts to sample the processes that live at a time.
pub(super) fn start<'s>(
    scope: &'s Scope<'s, '_>,
    sampling: Sampling,
    living: impl Fn() -> Vec<i32> + Send + 's,
) -> Running<'s> {
    let (going_on, end) = mpsc::channel();
    Running { going_on, thread: scope.spawn(move || sample(sampling, living, &end)) }
}

impl Running<'_> {
    pub(super) fn end(self) -> Referenced {
        drop(self.going_on);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Samples until the other end of the channel is gone.
fn sample(sampling: Sampling, living: impl Fn() -> Vec<i32>, end: &Receiver<()>) -> Referenced {
    let (found, intervals) = (Referenced::default(), (0, Duration::ZERO));
    let mut sampler = Sampler { found, living: HashMap::new(), too_large: HashSet::new(), intervals };
    let (first, mut dearest) = (Instant::now(), Duration::ZERO);
    loop {
        let round = Instant::now();
        let living = living();
        sampler.end(|pid| !living.contains(&pid));
        for pid in living {
            // A process that ends meanwhile has no sample of this interval.
            if let Err(error) = sampler.look_at(pid)
                && matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported)
            {
                sampler.found.refused.get_or_insert_with(|| error.to_string());
            }
        }
        let cost = round.elapsed();
        dearest = dearest.max(cost);
        sampler.found.spent += cost;
        // The next round keeps to the bound too, unless it takes longer than all before it.
        let allowed = (sampler.found.spent + dearest).div_f64(sampling.max_overhead.max(1e-3));
        let wait = sampling.interval.max(allowed.saturating_sub(first.elapsed()));
        if end.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
            break;
        }
    }
    sampler.end(|_| true);
    let (number, time) = sampler.intervals;
    sampler.found.interval = time / number.max(1);
    sampler.found.sampled = first.elapsed();
    sampler.found
}

impl Sampler {
    /// Reads the bits of a process that were set since they were cleared, and clears them.
    fn look_at(&mut self, pid: i32) -> io::Result<()> {
        if self.too_large.contains(&pid) {
            return Ok(());
        }
        let since = Instant::now();
        let smaps = proc_files::text(format!("/proc/{pid}/smaps")).map_err(|error| why(pid, error))?;
        if smaps.is_empty() {
            // It has ended, and its parent has not seen that yet.
            return Ok(());
        }
        if let Some(process) = self.living.get_mut(&pid) {
            let interval = since.duration_since(process.cleared);
            self.intervals = (self.intervals.0 + 1, self.intervals.1 + interval);
            let comm = proc_files::text(format!("/proc/{pid}/comm")).unwrap_or_default();
            process.program = comm.trim_end_matches('\n').to_owned();
            process.keep(&smaps);
        }
        let read = since.elapsed();
        self.found.longest = self.found.longest.max(read);
        if read > LONGEST {
            self.leave_out(pid);
            return Ok(());
        }
        let since = Instant::now();
        fs::write(format!("/proc/{pid}/clear_refs"), "1").map_err(|error| why(pid, error))?;
        let cleared = Instant::now();
        self.found.longest = self.found.longest.max(cleared - since);
        self.living.entry(pid).or_insert_with(|| Living::new(cleared)).cleared = cleared;
        if cleared - since > LONGEST {
            self.leave_out(pid);
        }
        Ok(())
    }

    fn leave_out(&mut self, pid: i32) {
        self.too_large.insert(pid);
        self.found.left_out += 1;
    }

    /// Forgets processes, but the one with the largest median of all.
    fn end(&mut self, has_ended: impl Fn(i32) -> bool) {
        let ended: Vec<i32> = self.living.keys().copied().filter(|pid| has_ended(*pid)).collect();
        for pid in ended {
            let process = self.living.remove(&pid).and_then(|living| living.ended(pid));
            let median = |of: &Option<ReferencedProcess>| of.as_ref().map(|process| sum(&process.median));
            if median(&process) > median(&self.found.process) {
                self.found.process = process;
            }
        }
    }
}

impl Living {
    fn new(cleared: Instant) -> Self {
        Self { cleared, program: String::new(), intervals: 0, most: 0, kept: vec![], every: 1 }
    }

    /// Keeps what an interval has referenced.
    fn keep(&mut self, smaps: &str) {
        let areas = present::parse(smaps).into_iter();
        let mappings: Vec<_> = areas.filter(|area| area.referenced > 0).map(mapping).collect();
        self.most = self.most.max(sum(&mappings));
        if self.intervals.is_multiple_of(self.every) {
            self.kept.push(mappings);
        }
        self.intervals += 1;
        if self.kept.len() > KEPT {
            let mut number = 0..;
            self.kept.retain(|_| number.next().is_some_and(|number: u32| number.is_multiple_of(2)));
            self.every *= 2;
        }
    }

    /// `None` if no interval came to its end.
    fn ended(mut self, pid: i32) -> Option<ReferencedProcess> {
        self.kept.sort_by_key(|mappings| sum(mappings));
        let at = self.kept.len() / 2;
        let median = self.kept.into_iter().nth(at)?;
        let (program, intervals, most) = (self.program, self.intervals, self.most);
        Some(ReferencedProcess { pid, program, intervals, most, median })
    }
}

/// A file that a process lacks while it lives is one that the kernel lacks.
fn why(pid: i32, error: io::Error) -> io::Error {
    let lives = || Path::new(&format!("/proc/{pid}")).exists();
    if error.kind() == ErrorKind::NotFound && lives() {
        let said = "this kernel has no /proc/PID/smaps and clear_refs (CONFIG_PROC_PAGE_MONITOR)";
        return io::Error::new(ErrorKind::Unsupported, said);
    }
    error
}

/// The referenced bytes of all mappings.
fn sum(mappings: &[ReferencedMapping]) -> u64 {
    mappings.iter().map(|mapping| mapping.referenced).sum()
}

fn mapping(area: present::Area) -> ReferencedMapping {
    let present::Area { mapping, referenced, large, .. } = area;
    ReferencedMapping {
        anonymous: mapping.inode == 0 && mapping.flags & MAP_PRIVATE != 0 && !mapping.name.starts_with("[v"),
        name: mapping.name,
        start: mapping.start,
        len: mapping.len,
        within: mapping.start..mapping.start + mapping.len,
        referenced,
        large,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smaps(kib: u64) -> String {
        format!("1000-2000 rw-p 00000000 00:00 0 \nRss: 9 kB\nReferenced: {kib} kB\nAnonHugePages: 2048 kB\n")
    }

    #[test]
    fn the_median_is_that_of_all_intervals_in_bounded_memory() {
        let mut process = Living::new(Instant::now());
        // Two thirds reference 4 KiB, and one third 16 KiB; one interval 4 MiB.
        for number in 0..3000 {
            process.keep(&smaps(if number == 7 {
                4096
            } else if number % 3 == 0 {
                16
            } else {
                4
            }));
            assert!(process.kept.len() <= KEPT);
        }
        let found = process.ended(1).expect("it has intervals");
        assert_eq!((found.intervals, found.most, sum(&found.median)), (3000, 4 << 20, 4 << 10));
        assert_eq!((found.median[0].large, found.median[0].anonymous), (2 << 20, true));
        assert!(Living::new(Instant::now()).ended(1).is_none());
    }

    #[test]
    fn a_kernel_without_the_files_is_not_a_process_that_has_ended() {
        let of = |pid: u32| why(pid as i32, ErrorKind::NotFound.into()).kind();
        assert_eq!(of(std::process::id()), ErrorKind::Unsupported);
        // No process has the number of the largest one and more.
        assert_eq!(of(1 << 30), ErrorKind::NotFound);
        assert_eq!(why(1, ErrorKind::PermissionDenied.into()).kind(), ErrorKind::PermissionDenied);
    }
}
