//! The configuration of a machine: its parts and its checks.

use std::time::Duration;

use quire::addr::PhysAddr;
use quire::arch::Feature;

use crate::error::HostedError;

/// No memory ends above this: an entry of a page table has bits for no higher address. So no sum of a few such addresses
/// overflows.
const HIGHEST: u64 = 1 << 52;

/// A range of physical memory. Whole frames; ranges of a machine stand in ascending order and may leave holes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRange {
    /// The first byte's physical address.
    pub start: PhysAddr,
    /// The extent in bytes.
    pub bytes: u64,
    /// The memory node, for machines with more than one.
    pub node: u8,
}

impl MemoryRange {
    /// `bytes` bytes from physical address `start` on node 0.
    pub const fn new(start: u64, bytes: u64) -> Self {
        Self { start: PhysAddr(start), bytes, node: 0 }
    }

    /// The same range on another node.
    #[must_use]
    pub const fn on_node(self, node: u8) -> Self {
        Self { node, ..self }
    }

    /// The address after the last byte.
    pub const fn end(self) -> PhysAddr {
        PhysAddr(self.start.0 + self.bytes)
    }
}

/// The host memory behind the machine's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// A memfd, mapped shared. Untouched memory takes nothing of the host.
    Memfd,
    /// Anonymous memory. As for the file, but the host's transparent huge pages apply under `madvise`.
    Anonymous,
    /// Zeroed memory of the process's allocator: for Miri and for small machines, since it takes the whole
    /// span at once.
    Heap,
}

/// The reaction to a broken rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnViolation {
    /// The machine keeps a record, which a test can query; [`crate::Hosted::assert_clean`] panics later.
    Record,
    /// The thread that broke the rule panics at once.
    #[default]
    Panic,
}

/// How a machine is built. Start from [`HostedConfig::new`], or from [`HostedConfig::bench`] for measurements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostedConfig {
    /// Physical memory, in ascending order.
    pub ranges: Vec<MemoryRange>,
    /// How many CPUs the machine has.
    pub cpus: usize,
    /// The memory node of each CPU; those behind the end are on node 0.
    pub nodes: Vec<u8>,
    /// The distance from node `from` to node `to`: `distances[from][to]`, as in ACPI's SLIT. Missing values
    /// are 10 for the node itself and 20 for any other.
    pub distances: Vec<Vec<u8>>,
    /// The host memory behind the memory.
    pub backing: Backing,
    /// Touch all memory when the machine is built, so that no later access pays a fault of the host.
    pub prefault: bool,
    /// Ask the host for huge pages behind the memory. Best effort: [`crate::Arena::huge_pages`] and
    /// [`crate::Arena::footprint`] show the result.
    pub huge_pages: bool,
    /// Model the TLBs and paging-structure caches, and check every freed frame against them.
    pub tlb_model: bool,
    /// Interrupt the processors that run this process at each remote flush (`membarrier`), so that it has a real price.
    pub real_ipis: bool,
    /// The least time that a flush of the kernel's addresses takes, as on a machine with more processors. The
    /// caller spins for what is left of it.
    pub kernel_flush: Duration,
    /// Let [`crate::Hosted::disable_interrupts`] and `restore_interrupts` execute a kernel's
    /// instructions as far as a process can: saving and restoring the processor's flags (`pushf`, `popf`),
    /// which is most of the price. Interrupts themselves are modelled either way.
    pub interrupt_price: bool,
    /// Really clear and copy memory. If off, [`quire::platform::FramePlatform::clear`] and `copy` only count,
    /// for benches that show clearing apart; the memory's contents are then wrong.
    pub clearing: bool,
    /// Neither clear nor copy memory that the host has not populated, which is zero already: a folio of 1 GiB then
    /// takes only the host memory that a test touches. For anonymous memory from 256 MiB on, with Linux 6.7 or later.
    /// Such memory is not in huge pages, since one touch would take a whole one.
    pub lazy_clears: bool,
    /// Notice memory that is cleared although it is still zero from an earlier clear
    /// ([`crate::Hosted::frames_cleared_again`]).
    pub watch_clears: bool,
    /// Features of the host's processors that the machine's lack, for kernels that clear and copy.
    pub lacks: Vec<Feature>,
    /// How long a task that waits for a word ([`quire::platform::Platform::wait`]) polls it before it sleeps,
    /// as KVM's `halt_poll_ns` for a virtual CPU.
    pub halt_poll: Duration,
    /// Refuse locks in a wrong order.
    pub check_ranks: bool,
    /// The software MMU walks five levels instead of four.
    pub five_level: bool,
    /// CPUs keep translations of roots that they leave, as with process-context identifiers.
    pub keeps_translations: bool,
    /// What happens when a rule is broken.
    pub on_violation: OnViolation,
}

impl HostedConfig {
    /// A machine for tests: one range of `bytes` from physical address 0, one CPU, every check on. Its memory
    /// is huge pages of the host, which saves a fifth of the time of many tests; [`Self::sparse`] takes only
    /// touched memory.
    pub fn new(bytes: u64) -> Self {
        Self {
            ranges: vec![MemoryRange::new(0, bytes)],
            cpus: 1,
            nodes: Vec::new(),
            distances: Vec::new(),
            backing: if cfg!(miri) { Backing::Heap } else { Backing::Anonymous },
            prefault: false,
            huge_pages: true,
            tlb_model: true,
            real_ipis: false,
            kernel_flush: Duration::ZERO,
            interrupt_price: false,
            clearing: true,
            lazy_clears: true,
            watch_clears: false,
            lacks: Vec::new(),
            halt_poll: Duration::ZERO,
            check_ranks: true,
            five_level: false,
            keeps_translations: false,
            on_violation: OnViolation::Panic,
        }
    }

    /// A machine for tests that touch little of its memory: untouched memory takes nothing of the host.
    pub fn sparse(bytes: u64) -> Self {
        let backing = if cfg!(miri) { Backing::Heap } else { Backing::Memfd };
        Self { backing, huge_pages: false, ..Self::new(bytes) }
    }

    /// A machine for measurements: as [`Self::new`], with prefaulted memory in huge pages where the host has them (as a
    /// kernel's direct map would be), real interrupts and no check.
    pub fn bench(bytes: u64) -> Self {
        Self {
            prefault: true,
            lazy_clears: false,
            tlb_model: false,
            real_ipis: true,
            interrupt_price: !cfg!(miri),
            check_ranks: false,
            ..Self::new(bytes)
        }
    }

    /// The same with these ranges.
    #[must_use]
    pub fn with_ranges(self, ranges: Vec<MemoryRange>) -> Self {
        Self { ranges, ..self }
    }

    /// The same with this many CPUs.
    #[must_use]
    pub fn with_cpus(self, cpus: usize) -> Self {
        Self { cpus, ..self }
    }

    /// The same with the CPUs on these nodes, in order.
    #[must_use]
    pub fn with_nodes(self, nodes: Vec<u8>) -> Self {
        Self { nodes, ..self }
    }

    /// The same with these distances between nodes.
    #[must_use]
    pub fn with_distances(self, distances: Vec<Vec<u8>>) -> Self {
        Self { distances, ..self }
    }

    /// The same on processors without this feature.
    #[must_use]
    pub fn without(mut self, feature: Feature) -> Self {
        self.lacks.push(feature);
        self
    }

    /// The same, and memory that is cleared twice is noticed.
    #[must_use]
    pub fn watching_clears(self) -> Self {
        Self { watch_clears: true, ..self }
    }

    /// The same with CPUs that keep translations of roots that they leave.
    #[must_use]
    pub fn keeping_translations(self) -> Self {
        Self { keeps_translations: true, ..self }
    }

    /// The extent from the lowest to the highest byte, holes included, after the ranges were checked.
    pub(crate) fn checked_span(&self) -> Result<u64, HostedError> {
        if !(1..=quire::limits::MAX_CPUS).contains(&self.cpus) {
            return Err(HostedError::BadCpuCount { asked: self.cpus });
        }
        let first = self.ranges.first().ok_or(HostedError::NoRanges)?.start.0;
        let mut end = first;
        for (index, range) in self.ranges.iter().enumerate() {
            let frame = quire::limits::FRAME_SIZE;
            let top = range.start.0.checked_add(range.bytes).filter(|&top| top <= HIGHEST);
            let top = top.ok_or(HostedError::BadRange { index })?;
            if range.bytes == 0 || !range.start.0.is_multiple_of(frame) || !range.bytes.is_multiple_of(frame)
            {
                return Err(HostedError::BadRange { index });
            }
            if range.start.0 < end {
                return Err(HostedError::Overlapping { index });
            }
            end = top;
        }
        Ok(end - first)
    }
}
