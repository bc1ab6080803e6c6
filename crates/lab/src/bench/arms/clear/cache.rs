//! How much of a working set a clear leaves in the caches.

use std::rc::Rc;
use std::time::Instant;

use quire::addr::FrameRange;
use quire::cpu::CpuId;
use rustix::mm::Advice;

use super::grounds::{Grounds, Shared};
use super::way::Way;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::linux::region::Region;

/// Clear an extent beside a working set, and read that again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Bytes that are cleared.
    pub extent: u64,
    /// Bytes of the working set.
    pub working_set: usize,
    /// The order of the reads.
    pub reread: Reread,
}

/// How a working set is read again, each line once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reread {
    /// In order of address.
    InOrder,
    /// Each line holds the number of the next.
    Chase,
}

/// Bytes of a line.
const LINE: usize = 64;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Reads of the working set before the clear, so that caches hold it as they would in use.
const WARM: usize = 8;
/// Seed of the chase's order.
const SEED: u64 = 11;

pub(super) struct Beside {
    way: Way,
    shared: Rc<Shared>,
}

impl Beside {
    pub(super) fn arm(way: Way, shared: &Rc<Shared>) -> Box<dyn Arm<Cache>> {
        Box::new(Self { way, shared: shared.clone() })
    }
}

impl Arm<Cache> for Beside {
    fn name(&self) -> &'static str {
        self.way.name()
    }

    fn about(&self) -> &'static str {
        self.way.about()
    }

    fn setup(&mut self, case: &Cache) -> Result<Box<dyn Prepared + '_>, Skip> {
        let grounds = self.shared.grounds(case.extent)?;
        let set = working_set(case.working_set)?;
        Ok(Box::new(Ready { way: self.way, case: *case, grounds, set }))
    }
}

/// A ring through all lines in random order: the first word of a line is the number of the next one.
fn working_set(bytes: usize) -> Result<Set, Skip> {
    let lines = bytes / LINE;
    let mut order: Vec<usize> = (0..lines).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut order);
    let region =
        Region::map(bytes.next_multiple_of(HUGE)).map_err(|error| Skip::because("no memory", error))?;
    region.advise(Advice::LinuxHugepage).map_err(|error| Skip::because("no huge pages", error))?;
    let mut set = Set { region, lines };
    for (at, &line) in order.iter().enumerate() {
        let next = (order[(at + 1) % lines] as u64).to_le_bytes();
        set.region.as_bytes()[line * LINE..][..next.len()].copy_from_slice(&next);
    }
    Ok(set)
}

/// The working set, in a huge page where the system has one. Otherwise TLB misses on small pages would count
/// against the clear.
struct Set {
    region: Region,
    lines: usize,
}

impl Set {
    fn words(&mut self) -> &[[u64; LINE / 8]] {
        let lines = self.lines;
        // SAFETY: C1: the slice borrows the mapping, and any eight bytes are a word.
        let (_, words, _) = unsafe { self.region.as_bytes()[..lines * LINE].align_to() };
        words
    }
}

struct Ready {
    way: Way,
    case: Cache,
    grounds: Rc<Grounds>,
    set: Set,
}

impl Ready {
    /// Reads the first word of each line; returns the sum.
    fn read(&mut self) -> u64 {
        let reread = self.case.reread;
        let words = self.set.words();
        match reread {
            Reread::InOrder => words.iter().map(|line| std::hint::black_box(line[0])).sum(),
            Reread::Chase => {
                let step = |(line, sum): (u64, u64), _: usize| {
                    let next = words[line as usize][0];
                    (next, sum + next)
                };
                (0..words.len()).fold((0, 0), step).1
            }
        }
    }
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (grounds, way) = (self.grounds.clone(), self.way);
        grounds.machine().run_on(CpuId(0), || {
            let extent = FrameRange::new(grounds.of(CpuId(0)).start, self.case.extent / 4096);
            (0..WARM).for_each(|_| {
                std::hint::black_box(self.read());
            });
            let begun = Instant::now();
            grounds.clear(way, extent, None);
            grounds.took(way, extent, begun.elapsed());
            let begun = Instant::now();
            let sum = std::hint::black_box(self.read());
            let nanoseconds = begun.elapsed().as_nanos() as f64;
            Ok(Sample::new(nanoseconds, sum).count("lines", self.set.lines as u64))
        })
    }
}
