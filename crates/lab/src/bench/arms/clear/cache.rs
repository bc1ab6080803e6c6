//! What a clear leaves of somebody's working set in the caches.

use std::rc::Rc;
use std::time::Instant;

use quire::addr::FrameRange;
use quire::cpu::CpuId;

use super::Way;
use super::grounds::{Grounds, Shared};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};

/// Clear an extent beside a working set, and read that again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Bytes that are cleared.
    pub extent: u64,
    /// Bytes of the working set.
    pub working_set: usize,
    /// How it is read.
    pub reread: Reread,
}

/// How a working set is read again, each line once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reread {
    /// In order of address.
    InOrder,
    /// Each line says which one is next.
    Chase,
}

/// Words of a line.
const LINE: usize = 8;
/// Times that the working set is read before the clear, so that it is where it would be in use.
const WARM: usize = 8;
/// Decides the order of the chase.
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
        Ok(Box::new(Ready { way: self.way, case: *case, grounds, set: working_set(case.working_set) }))
    }
}

/// A ring through all lines in random order: the first word of a line is the number of the next one.
fn working_set(bytes: usize) -> Vec<[u64; LINE]> {
    let lines = bytes / size_of::<[u64; LINE]>();
    let mut order: Vec<usize> = (0..lines).collect();
    fastrand::Rng::with_seed(SEED).shuffle(&mut order);
    let mut set = vec![[0; LINE]; lines];
    for (at, &line) in order.iter().enumerate() {
        set[line][0] = order[(at + 1) % lines] as u64;
    }
    set
}

struct Ready {
    way: Way,
    case: Cache,
    grounds: Rc<Grounds>,
    set: Vec<[u64; LINE]>,
}

impl Ready {
    /// The sum of the first words.
    fn read(&self) -> u64 {
        match self.case.reread {
            Reread::InOrder => self.set.iter().map(|line| std::hint::black_box(line[0])).sum(),
            Reread::Chase => {
                let step = |(line, sum): (u64, u64), _: usize| {
                    let next = self.set[line as usize][0];
                    (next, sum + next)
                };
                (0..self.set.len()).fold((0, 0), step).1
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
            grounds.clear(way, extent, None);
            let begun = Instant::now();
            let sum = std::hint::black_box(self.read());
            let nanoseconds = begun.elapsed().as_nanos() as f64;
            Ok(Sample::new(nanoseconds, sum).count("lines", self.set.len() as u64))
        })
    }
}
