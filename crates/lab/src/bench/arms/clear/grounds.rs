//! The memory to clear, on a machine that all arms of an experiment share, and this run's policy.

use hosted::raw::RawClearer;
use hosted::raw::RawMachine;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange};
use quire::arch::{ClearKernel, ReadyClear, store_fence};
use quire::clear::{ClearPolicy, Clearer, Extent};
use quire::cpu::CpuId;
use quire::platform::{FramePlatform, TouchHint};

use super::way::{Setting, Way, contiguous};
use crate::bench::experiment::Skip;

/// Bytes between two marks.
pub(super) const MARKED: usize = 256 << 10;
/// 64 GiB/s, the pace of [`Way::Wait`] before the policy has cleared anything.
const WAITED_BYTES_PER_NS: u64 = 69;
/// Bytes of a cache line.
const LINE: usize = 64;

/// The machine, built by the first arm that needs it.
pub(super) struct Shared {
    policy: ClearPolicy,
    processors: Vec<usize>,
    grounds: RefCell<Option<Rc<Grounds>>>,
}

/// A machine and its clearer.
pub(super) struct Grounds {
    machine: Hosted,
    clearer: Clearer,
    /// Clears as Linux 7.0 does.
    contiguous: Clearer,
    /// One processor for each CPU.
    processors: Vec<usize>,
    bytes: u64,
    /// Picoseconds per byte that the policy took last; zero before the first clear.
    pace: AtomicU64,
}

impl Shared {
    pub(super) fn new(setting: &Setting) -> Self {
        Self { policy: setting.policy, processors: setting.cpus.clone(), grounds: RefCell::new(None) }
    }

    /// At least `bytes` bytes for each CPU.
    pub(super) fn grounds(&self, bytes: u64) -> Result<Rc<Grounds>, Skip> {
        let mut kept = self.grounds.borrow_mut();
        if let Some(grounds) = kept.as_ref().filter(|grounds| grounds.bytes >= bytes) {
            return Ok(grounds.clone());
        }
        // Drops the old machine before building a larger one.
        *kept = None;
        let grounds = Rc::new(Grounds::new(bytes, &self.processors, &self.policy)?);
        *kept = Some(grounds.clone());
        Ok(grounds)
    }
}

impl Grounds {
    fn new(bytes: u64, processors: &[usize], policy: &ClearPolicy) -> Result<Self, Skip> {
        let cpus = processors.len();
        let failed = |error: &dyn std::fmt::Display| Skip(format!("no memory to clear: {error}"));
        let machine = HostedConfig::bench(bytes * cpus as u64)
            .with_cpus(cpus)
            .build()
            .map_err(|error| failed(&error))?;
        let clearer = |policy: &ClearPolicy| {
            let built = machine.run_on(CpuId(0), || Clearer::new(&machine, Some(policy)));
            built.map_err(|error| failed(&error))
        };
        let (clearer, contiguous) = (clearer(policy)?, clearer(&contiguous())?);
        let (processors, pace) = (processors.to_vec(), AtomicU64::new(0));
        Ok(Self { machine, clearer, contiguous, processors, bytes, pace })
    }

    pub(super) fn machine(&self) -> &Hosted {
        &self.machine
    }

    /// The processors of the host on which its CPUs run.
    pub(super) fn processors(&self) -> &[usize] {
        &self.processors
    }

    pub(super) fn of(&self, cpu: CpuId) -> FrameRange {
        let frames = self.bytes / 4096;
        let first = self.machine.ranges()[0].start.frame();
        FrameRange::new(first.add(cpu.index() as u64 * frames), frames)
    }

    /// Records how long a way took for an extent; [`Way::Wait`] waits as long as the policy took.
    pub(super) fn took(&self, way: Way, frames: FrameRange, time: Duration) {
        if way == Way::Policy(TouchHint::Unknown) {
            let pace = time.as_nanos() as u64 * 1000 / (frames.count * 4096);
            self.pace.store(pace, Ordering::Relaxed);
        }
    }

    /// Clears an extent; `near` is the part that an access waits for.
    pub(super) fn clear(&self, way: Way, frames: FrameRange, near: Option<Frame>) {
        match way {
            Way::Kernel(kernel) => {
                let ready = kernel.on(self.clearer.features()).unwrap_or(ReadyClear::PLAIN);
                self.machine.clear_raw(frames, ready);
            }
            Way::Memset => {
                // SAFETY: C6, H1: the frames are memory of the machine, which the running arm has to itself.
                unsafe { self.start(frames).write_bytes(0, (frames.count * 4096) as usize) };
            }
            Way::Policy(hint) => {
                self.by(&self.clearer, &Extent { near, ..Extent::new(frames, hint) });
            }
            Way::Contiguous => {
                self.by(&self.contiguous, &Extent { near, ..Extent::new(frames, TouchHint::Unknown) });
            }
            Way::Nothing => {}
            Way::Wait => self.wait(frames, Instant::now()),
            Way::Translate => {
                let begun = Instant::now();
                self.line_of_each(frames);
                self.wait(frames, begun);
            }
        }
    }

    fn by(&self, clearer: &Clearer, extent: &Extent) {
        let done = clearer.clear_extent_raw(&self.machine, extent, || false);
        debug_assert!(done.is_ok(), "it is never cancelled");
    }

    /// Waits as long as the policy took for as many frames.
    fn wait(&self, frames: FrameRange, begun: Instant) {
        let bytes = frames.count * 4096;
        let nanoseconds = match self.pace.load(Ordering::Relaxed) {
            0 => bytes / WAITED_BYTES_PER_NS,
            pace => bytes * pace / 1000,
        };
        while begun.elapsed().as_nanos() < u128::from(nanoseconds) {
            std::hint::spin_loop();
        }
    }

    /// Clears one line of each frame by non-temporal stores, a different line in each frame.
    fn line_of_each(&self, frames: FrameRange) {
        let (start, kernel) = (self.start(frames), ClearKernel::Movnti.on(self.clearer.features()));
        let kernel = kernel.unwrap_or(ReadyClear::PLAIN).unfenced();
        for frame in 0..frames.count as usize {
            // SAFETY: C6, H1: each line lies in one of the frames, which the running arm has to itself.
            unsafe { kernel.zero(start.add(frame * 4096 + frame % (4096 / LINE) * LINE), LINE) };
        }
        store_fence();
    }

    /// Reads each line once, in order; returns how many are zero.
    pub(super) fn read(&self, frames: FrameRange) -> u64 {
        self.read_lines(frames, 0..lines_of(frames))
    }

    /// Reads each line once, each far from the one before; returns how many are zero. The number of lines is a
    /// power of two, so that the steps of this generator pass through all of them.
    pub(super) fn read_scattered(&self, frames: FrameRange) -> u64 {
        let count = lines_of(frames);
        debug_assert!(count.is_power_of_two());
        let next = |at: &usize| Some(at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % count);
        self.read_lines(frames, std::iter::successors(Some(0), next).take(count))
    }

    fn read_lines(&self, frames: FrameRange, lines: impl Iterator<Item = usize>) -> u64 {
        let start = self.start(frames);
        let line = |at: usize| {
            // SAFETY: C6, H1: the line lies in the extent, which the running arm has to itself.
            let word = unsafe { start.add(at * LINE).cast::<u64>().read_volatile() };
            u64::from(word == 0)
        };
        lines.map(line).sum()
    }

    /// The address of the frames in this process.
    pub(super) fn start(&self, frames: FrameRange) -> *mut u8 {
        self.machine.direct_map(frames.start.addr())
    }
}

fn lines_of(frames: FrameRange) -> usize {
    frames.count as usize * 4096 / LINE
}

/// Writes a mark into every 256 KiB, or one into the range if it is smaller. The caller owns the frames.
pub(super) fn mark(machine: &Hosted, frames: FrameRange) {
    marks(machine, frames).for_each(|at| {
        // SAFETY: C6, H1: the mark lies in the range, and each thread marks a range of its own.
        unsafe { at.write_volatile(u64::MAX) }
    });
}

pub(super) fn zeroes(machine: &Hosted, frames: FrameRange) -> u64 {
    // SAFETY: C6, H1: the marks lie in the range, which this thread reads alone.
    marks(machine, frames).filter(|at| unsafe { at.read_volatile() } == 0).count() as u64
}

/// How many of the frames have a zero in their last word.
pub(super) fn zero_pages(machine: &Hosted, frames: FrameRange) -> u64 {
    let start = machine.direct_map(frames.start.addr());
    let last = |frame: u64| start.wrapping_add((frame * 4096) as usize + 4096 - size_of::<u64>());
    let word = |frame: u64| {
        // SAFETY: C6, H1: the word is the last of one of the frames, which this thread reads alone.
        unsafe { last(frame).cast::<u64>().read_volatile() }
    };
    (0..frames.count).filter(|&frame| word(frame) == 0).count() as u64
}

fn marks(machine: &Hosted, frames: FrameRange) -> impl Iterator<Item = *mut u64> {
    let (start, bytes) = (machine.direct_map(frames.start.addr()), (frames.count * 4096) as usize);
    let last = move |at: usize| at + MARKED.min(bytes - at) - size_of::<u64>();
    (0..bytes).step_by(MARKED).map(move |at| start.wrapping_add(last(at)).cast())
}
