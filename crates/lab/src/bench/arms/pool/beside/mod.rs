//! Arms of the experiment `hugetlb-churn`: a pool grows and shrinks beside threads that use small pages.

mod linux;
mod quire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use super::case::REQUEST;
use super::kernel::kernels;
use crate::bench::experiment::{Arm, Better, Metric, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::host::threads::{Meeting, together};

/// Nanoseconds of a small page of the workers, from its fault through its unmapping.
pub const SMALL: Metric = Metric { name: "small", unit: "ns", better: Better::Lower };
/// The same for the worker that has a processor to itself.
pub const APART: Metric = Metric { name: "small-apart", unit: "ns", better: Better::Lower };
/// CPU time of the resizer's thread in nanoseconds, for each page of the pool.
pub const RAN: Metric = Metric { name: "ran", unit: "ns", better: Better::Lower };

/// Threads that use small pages.
const WORKERS: usize = 2;
/// Bytes that a worker maps, touches and unmaps.
const REGION: usize = 2 << 20;
/// The resizer's sleep after each request.
const PAUSE: Duration = Duration::from_millis(1);

/// Grow and shrink a pool of 2 MiB pages, use small pages, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resizing {
    /// Pages of the pool when it is full.
    pub pages: u64,
    /// Times that it is filled and emptied.
    pub cycles: u64,
    /// Regions of each worker when no resizer runs; beside a resizer the workers go on until it has ended.
    pub regions: u64,
    /// Which threads run.
    pub running: Running,
    /// The processors: each worker has one, and the resizer runs on the first worker's.
    pub processors: Vec<usize>,
}

/// Which threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// The resizer and the workers.
    All,
    /// The resizer alone.
    Resizer,
    /// The workers alone.
    Workers,
}

/// Every arm. The checksum is the number of pages requested, or of small pages when no resizer runs.
pub fn all() -> Vec<Box<dyn Arm<Resizing>>> {
    let mut arms = quire::all();
    arms.extend(kernels().map(|kernel| Box::new(linux::Linux { kernel }) as Box<dyn Arm<Resizing>>));
    arms
}

/// The system whose memory is used.
trait Memory: Sync {
    /// Runs `body` as a CPU; a worker's CPU runs the workers' address space.
    fn enter(&self, cpu: usize, worker: bool, body: &mut dyn FnMut());

    /// Maps a region, writes to each of its pages and unmaps it; `None` if memory runs out.
    fn region(&self, bytes: usize) -> Option<()>;

    /// Makes one request; returns the pool's pages afterwards.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses requests.
    fn resize(&self, wanted: u64) -> Result<u64, Skip>;
}

/// The result of one thread.
enum Part {
    Worked { nanoseconds: f64, regions: u64 },
    Resized { nanoseconds: f64, ran: f64, short: u64 },
}

impl Resizing {
    /// Runs the resizer and the workers, each on its thread.
    ///
    /// # Errors
    /// [`Skip`] when one of them fails.
    fn play(&self, memory: &impl Memory) -> Result<Sample, Skip> {
        let workers = if self.running == Running::Resizer { 0 } else { WORKERS };
        let threads = workers + usize::from(self.running != Running::Workers);
        let over = AtomicBool::new(false);
        let mut cpus: Vec<usize> = (0..threads).collect();
        let parts = together(&mut cpus, &self.processors, |&mut cpu, meeting| {
            let (worker, mut part) = (cpu < workers, None);
            memory.enter(cpu, worker, &mut || {
                part = Some(match worker {
                    true => self.work(memory, meeting, &over),
                    false => self.resize(memory, meeting, &over),
                });
            });
            part.unwrap_or_else(|| Err(Skip("a thread did nothing".to_owned())))
        });
        self.sample(&parts.into_iter().collect::<Result<Vec<_>, _>>()?)
    }

    /// A worker: uses small pages until `over`.
    fn work(&self, memory: &impl Memory, meeting: &Meeting, over: &AtomicBool) -> Result<Part, Skip> {
        let (mut regions, mut there_is) = (0, true);
        meeting.wait();
        let start = Instant::now();
        let goes_on = |regions: u64| match self.running {
            Running::Workers => regions < self.regions,
            // At least one region, or there would be no time to report.
            _ => regions == 0 || !over.load(Ordering::Acquire),
        };
        while there_is && goes_on(regions) {
            there_is = memory.region(REGION).is_some();
            regions += u64::from(there_is);
        }
        let nanoseconds = start.elapsed().as_nanos() as f64;
        // This CPU receives the other threads' flushes until all are done.
        meeting.wait();
        if there_is {
            return Ok(Part::Worked { nanoseconds, regions });
        }
        Err(Skip(format!("no memory for a worker's region after {regions} of them")))
    }

    /// The resizer: fills and empties the pool.
    fn resize(&self, memory: &impl Memory, meeting: &Meeting, over: &AtomicBool) -> Result<Part, Skip> {
        let (mut nanoseconds, mut ran, mut short) = (0.0, 0.0, 0);
        let mut ask = |wanted: u64| {
            let (clock, start) = (thread_time(), Instant::now());
            let got = memory.resize(wanted)?;
            nanoseconds += start.elapsed().as_nanos() as f64;
            ran += (thread_time() - clock).as_nanos() as f64;
            short += u64::from(got != wanted);
            sleep(PAUSE);
            Ok(())
        };
        meeting.wait();
        let asked = (0..self.cycles).try_for_each(|_| [self.pages, 0].into_iter().try_for_each(&mut ask));
        over.store(true, Ordering::Release);
        meeting.wait();
        asked.map(|()| Part::Resized { nanoseconds, ran, short })
    }

    fn sample(&self, parts: &[Part]) -> Result<Sample, Skip> {
        let (mut small, mut resized) = (Vec::new(), None);
        for part in parts {
            match *part {
                Part::Worked { nanoseconds, regions } => {
                    small.push((nanoseconds, (regions as usize * (REGION / PAGE)) as f64));
                }
                Part::Resized { nanoseconds, ran, short } => resized = Some((nanoseconds, ran, short)),
            }
        }
        let of_all = small.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let each = |(nanoseconds, pages): (f64, f64)| nanoseconds / pages;
        let sample = match resized {
            Some((nanoseconds, ran, short)) => {
                let requests = 2 * self.cycles;
                let pages = (requests * self.pages) as f64;
                Sample::new(nanoseconds / pages, requests * self.pages)
                    .metric(REQUEST, nanoseconds / requests as f64)
                    .metric(RAN, ran / pages)
                    .count("requests", requests)
                    .count("short", short)
            }
            None => Sample::new(each(of_all), of_all.1 as u64),
        };
        Ok(match small.last() {
            Some(&apart) => {
                let regions = of_all.1 as u64 / (REGION / PAGE) as u64;
                sample.metric(SMALL, each(of_all)).metric(APART, each(apart)).count("regions", regions)
            }
            None => sample,
        })
    }
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux counts each thread's time"))
}
