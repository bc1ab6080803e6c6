//! The running kernel's pool, grown and shrunk.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::Instant;

use quire::hugetlb::HugeSize;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::busy::Busy;
use super::case::{PAGE_BYTES, Pools, REQUEST};
use super::churned::IN_USE;
use super::kernel::{Kernel, check, kernels, pages_moved, resize, write};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::output::say;

const SIZE: HugeSize = HugeSize::Size2M;

/// Every arm of the running kernel.
pub(super) fn all() -> impl Iterator<Item = Box<dyn Arm<Pools>>> {
    let pieces = Pieces::default();
    kernels().map(move |kernel| Box::new(Linux { kernel, pieces: pieces.clone() }) as Box<dyn Arm<Pools>>)
}

struct Linux {
    kernel: Kernel,
    pieces: Pieces,
}

impl Arm<Pools> for Linux {
    fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn about(&self) -> &'static str {
        self.kernel.about(
            "one write to nr_hugepages of the running kernel, with hugetlb_optimize_vmemmap \
         off: system call, page allocator, compaction where memory is fragmented. Both settings are put \
         back.",
        )
    }

    fn setup(&mut self, case: &Pools) -> Result<Box<dyn Prepared + '_>, Skip> {
        if !case.broadcast.is_zero() {
            return Err(Skip("the running kernel interrupts the processors that it has".to_owned()));
        }
        self.kernel.clear_for(&[SIZE], SIZE, case.pages)?;
        Ok(Box::new(Ready { case: *case, kernel: &self.kernel, pieces: self.pieces.clone() }))
    }
}

struct Ready<'a> {
    case: Pools,
    kernel: &'a Kernel,
    pieces: Pieces,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = self.case;
        self.kernel.choose_saving()?;
        let busy = case.busy.then(|| case.processors.1.map(Busy::on));
        let (from, to) = if case.grow { (0, case.pages) } else { (case.pages, 0) };
        resize(SIZE, 0)?;
        if case.churned {
            InUse::renew(&self.pieces, &case)?;
        }
        resize(SIZE, from)?;
        let start = Instant::now();
        let written = write(SIZE, "nr_hugepages", to);
        let nanoseconds = start.elapsed().as_nanos() as f64;
        let outcome = written.and_then(|()| check(SIZE, to));
        resize(SIZE, 0)?;
        drop(busy);
        outcome?;
        let sample = Sample::new(nanoseconds / case.pages as f64, case.pages);
        Ok(sample.metric(REQUEST, nanoseconds).count("pages", case.pages))
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.kernel.empty(SIZE);
        self.pieces.borrow_mut().take();
    }
}

/// The pages in use of a case, which both arms of the kernel share: a new mapping takes seconds.
type Pieces = Rc<RefCell<Option<InUse>>>;

/// Memory of which each 2 MiB has pages in use, in frames that were mostly in sequence when it was populated.
struct InUse {
    _memory: Memory,
    /// Pages that the kernel had moved when these were all in place.
    moved: Option<u64>,
}

impl InUse {
    /// Half as many blocks as the pool has pages get pages in use. Those of an earlier repetition stay while the kernel
    /// has moved none, and where the pool shrinks: how its blocks came to be free does not matter then.
    fn renew(kept: &Pieces, case: &Pools) -> Result<(), Skip> {
        let mut kept = kept.borrow_mut();
        let in_place = |pieces: &Self| pieces.moved.is_some() && pieces.moved == pages_moved();
        if kept.as_ref().is_some_and(|pieces| !case.grow || in_place(pieces)) {
            return Ok(());
        }
        // The old ones are freed first, or there would be two in memory.
        *kept = None;
        let memory = Memory::of((case.pages.div_ceil(2) * PAGE_BYTES) as usize)?;
        *kept = Some(Self { _memory: memory, moved: pages_moved() });
        Ok(())
    }
}

/// A mapping of small pages.
struct Memory(NonNull<c_void>, usize);

impl Memory {
    fn of(bytes: usize) -> Result<Self, Skip> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: C1: the kernel chooses an address at which nothing is mapped.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, flags) };
        let start = start.map_err(|error| Skip::because("memory to break up", error))?;
        let Some(start) = NonNull::new(start) else { return Err(Skip("memory to break up".to_owned())) };
        let memory = Self(start, bytes);
        let (page, kept) = (PAGE_BYTES as usize, IN_USE.bytes() as usize);
        let touched = memory
            .advise(0..bytes, Advice::LinuxNoHugepage)
            .and_then(|()| memory.advise(0..bytes, Advice::LinuxPopulateWrite))
            .and_then(|()| {
                (0..bytes)
                    .step_by(page)
                    .try_for_each(|at| memory.advise(at + kept..at + page, Advice::LinuxDontNeed))
            });
        touched.map(|()| memory).map_err(|error| Skip::because("memory to break up", error))
    }

    fn advise(&self, part: Range<usize>, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: C1: the mapping is this value's, and no reference points into it.
        unsafe { madvise(self.0.as_ptr().byte_add(part.start), part.len(), advice) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: C1: the mapping is this value's, and no reference points into it.
        let unmapped = unsafe { munmap(self.0.as_ptr(), self.1) };
        if let Err(error) = unmapped {
            say(format_args!("quire: unmapping failed: {error}"));
        }
    }
}
