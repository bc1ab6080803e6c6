//! The machine that Quire's arms of an experiment share. Its memory is dirty before it is allocated.

use std::cell::RefCell;
use std::rc::Rc;

use hosted::{Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::clear::ClearPolicy;
use quire::platform::{FramePlatform, Platform};
use quire::vm::{Access, Mm};

use crate::bench::arms::clear::Setting;
use crate::bench::experiment::Skip;

/// Bytes of a gigantic folio.
pub(super) const GIB: usize = 1 << 30;

/// Bytes that the tables of a small machine do not exceed.
const TABLES: usize = 64 << 20;

/// Bytes between two marks: the last word before each multiple of them.
const MARKED: usize = 256 << 10;
/// Faults after which a store counts as impossible.
const FAULTS: usize = 64;

/// The machine, built by the first arm that needs it, with this run's policy and processors.
pub(super) struct Shared {
    pub(super) policy: ClearPolicy,
    pub(super) processors: Vec<usize>,
    kept: RefCell<Option<Rc<Hosted>>>,
}

impl Shared {
    pub(super) fn new(setting: &Setting) -> Self {
        Self { policy: setting.policy, processors: setting.cpus.clone(), kept: RefCell::new(None) }
    }

    /// A machine with `bytes` bytes in aligned pages of `page` bytes and a CPU for each processor.
    pub(super) fn machine(&self, bytes: usize, page: usize) -> Result<Rc<Hosted>, Skip> {
        // More, so that enough pages are aligned wherever the tables are.
        let bytes = (bytes.next_multiple_of(page) + page.max(TABLES)) as u64;
        let mut kept = self.kept.borrow_mut();
        if let Some(machine) = kept.as_ref().filter(|machine| machine.ranges()[0].bytes >= bytes) {
            return Ok(machine.clone());
        }
        // Drops the old machine before building a larger one.
        *kept = None;
        let built = HostedConfig::bench(bytes).with_cpus(self.processors.len()).build();
        let machine = Rc::new(built.map_err(|error| Skip(format!("no memory to clear: {error}")))?);
        *kept = Some(machine.clone());
        Ok(machine)
    }
}

/// Dirties all memory of a machine by a mark in each 256 KiB, before a manager takes it over.
pub(super) fn mark(machine: &Hosted) {
    for range in machine.ranges() {
        let start = machine.direct_map(range.start);
        for at in marks(0, range.bytes as usize) {
            // SAFETY: C6, H1: a word of the machine's memory, which no manager owns now and no reference
            // points into.
            unsafe { start.add(at).cast::<u64>().write_volatile(u64::MAX) };
        }
    }
}

/// The offsets of the marks between two multiples of 256 KiB.
fn marks(start: usize, end: usize) -> impl Iterator<Item = usize> {
    (start..end).step_by(MARKED).map(|at| at + MARKED - size_of::<u64>())
}

/// Counts the marks between two offsets that read as zero; an unreadable one does not count.
pub(super) fn zeroes(start: usize, end: usize, read: impl Fn(usize) -> Option<u64>) -> u64 {
    marks(start, end).filter(|&at| read(at) == Some(0)).count() as u64
}

/// Checks that all marks in `bytes` bytes read as zero, given their number.
///
/// # Errors
/// [`Skip`] when one does not: the figure would be worth nothing.
pub(super) fn all_zero(zeroes: u64, bytes: usize) -> Result<(), Skip> {
    let marks = (bytes / MARKED) as u64;
    if zeroes == marks { Ok(()) } else { Err(Skip(format!("{zeroes} of {marks} marks read as zero"))) }
}

/// The word at an address, as a program in the current address space would read it.
pub(super) fn word(machine: &Hosted, addr: VirtAddr) -> Option<u64> {
    let mut bytes = [0; 8];
    machine.read(addr, &mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
}

/// Stores a byte as a program would, handling faults until the store succeeds.
pub(super) fn store<P: Platform>(machine: &Hosted, mm: &Mm<'_, P>, addr: VirtAddr) -> Result<(), Skip> {
    for _ in 0..FAULTS {
        let Err(fault) = machine.write(addr, &[1]) else { return Ok(()) };
        mm.fault(fault.addr, Access::Write)
            .map_err(|error| Skip(format!("fault at {:#x}: {error}", addr.0)))?;
    }
    Err(Skip(format!("{FAULTS} faults did not let a store at {:#x} succeed", addr.0)))
}
