//! The machine that Quire's arms of an experiment share, and memory that was dirty before it was allocated.

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

/// Bytes between two marks: the last word before each multiple of them.
const MARKED: usize = 256 << 10;
/// Faults after which a store that still does not succeed is taken for one that never will.
const FAULTS: usize = 64;

/// The machine, built by the first arm that needs it; the policy and the processors of this run.
pub(super) struct Shared {
    pub(super) policy: ClearPolicy,
    pub(super) processors: Vec<usize>,
    kept: RefCell<Option<Rc<Hosted>>>,
}

impl Shared {
    pub(super) fn new(setting: &Setting) -> Self {
        Self { policy: setting.policy, processors: setting.cpus.clone(), kept: RefCell::new(None) }
    }

    /// A machine on which `bytes` bytes can be had in aligned folios of 1 GiB, of as many CPUs as there are processors.
    pub(super) fn machine(&self, bytes: usize) -> Result<Rc<Hosted>, Skip> {
        // A GiB more, so that as many are whole and aligned wherever the tables stand.
        let bytes = (bytes.next_multiple_of(GIB) + GIB) as u64;
        let mut kept = self.kept.borrow_mut();
        if let Some(machine) = kept.as_ref().filter(|machine| machine.ranges()[0].bytes >= bytes) {
            return Ok(machine.clone());
        }
        // What is there goes before there is more.
        *kept = None;
        let built = HostedConfig::bench(bytes).with_cpus(self.processors.len()).build();
        let machine = Rc::new(built.map_err(|error| Skip(format!("no memory to clear: {error}")))?);
        *kept = Some(machine.clone());
        Ok(machine)
    }
}

/// Makes all memory of a machine dirty, a mark in each 256 KiB, before a manager takes it over.
pub(super) fn mark(machine: &Hosted) {
    for range in machine.ranges() {
        let start = machine.direct_map(range.start);
        for at in marks(0, range.bytes as usize) {
            // SAFETY: C6, H1: a word of the machine's memory, which no manager has now and no reference points
            // into.
            unsafe { start.add(at).cast::<u64>().write_volatile(u64::MAX) };
        }
    }
}

/// Where marks stand between two offsets, both multiples of 256 KiB.
fn marks(start: usize, end: usize) -> impl Iterator<Item = usize> {
    (start..end).step_by(MARKED).map(|at| at + MARKED - size_of::<u64>())
}

/// How many marks between two offsets read as zero; what cannot be read is none.
pub(super) fn zeroes(start: usize, end: usize, read: impl Fn(usize) -> Option<u64>) -> u64 {
    marks(start, end).filter(|&at| read(at) == Some(0)).count() as u64
}

/// Checks that so many of the marks in `bytes` bytes read as zero.
///
/// # Errors
/// [`Skip`] when some do not: no figure is worth anything then.
pub(super) fn all_zero(zeroes: u64, bytes: usize) -> Result<(), Skip> {
    let marks = (bytes / MARKED) as u64;
    if zeroes == marks { Ok(()) } else { Err(Skip(format!("{zeroes} of {marks} marks read as zero"))) }
}

/// The word at an address, as the program whose address space is loaded would read it.
pub(super) fn word(machine: &Hosted, addr: VirtAddr) -> Option<u64> {
    let mut bytes = [0; 8];
    machine.read(addr, &mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
}

/// Stores a byte as a program would: with as many faults as it takes.
pub(super) fn store<P: Platform>(machine: &Hosted, mm: &Mm<'_, P>, addr: VirtAddr) -> Result<(), Skip> {
    for _ in 0..FAULTS {
        let Err(fault) = machine.write(addr, &[1]) else { return Ok(()) };
        mm.fault(fault.addr, Access::Write)
            .map_err(|error| Skip(format!("fault at {:#x}: {error}", addr.0)))?;
    }
    Err(Skip(format!("{FAULTS} faults and no store at {:#x}", addr.0)))
}
