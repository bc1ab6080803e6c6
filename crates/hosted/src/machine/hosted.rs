//! The machine as a value: its parts, and its queries.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use quire::addr::PhysAddr;
use quire::cpu::{AtomicCpuSet, CpuId};
use quire::limits::FRAME_SIZE;

use crate::arena::Arena;
use crate::barriers;
use crate::cleared::Ledger;
use crate::config::{HostedConfig, MemoryRange};
use crate::counters::{Counters, CpuCounters};
use crate::error::HostedError;
use crate::failures::Failures;
use crate::files::SyntheticFiles;
use crate::nested::NestedTables;
use crate::plan::FailurePlan;
use crate::task::Task;
use crate::tlb::Tlbs;
use crate::violation::Violations;

/// A machine inside the process. See the [crate documentation](crate).
pub struct Hosted {
    pub(crate) config: HostedConfig,
    pub(crate) arena: Arena,
    pub(crate) files: SyntheticFiles,
    pub(crate) failures: Failures,
    pub(crate) tlbs: Tlbs,
    pub(crate) nested: NestedTables,
    pub(crate) violations: Violations,
    /// What was cleared and not stored to since, if that is watched.
    pub(crate) ledger: Option<Ledger>,
    pub(crate) born: Instant,
    /// Turns of spin loops, on all CPUs.
    pub(crate) spins: AtomicU64,
    pub(crate) online: AtomicCpuSet,
    /// [`CONTEXTS`] for each CPU: an interrupt never counts where the code below it is counting.
    counters: Box<[CpuCounters]>,
    pub(super) taken: Box<[AtomicBool]>,
    /// Threads that run as a CPU, without those that wait in [`Self::spawn_cpus`]: their number in the low
    /// half, and in the high half how many have entered, so that two reads notice a thread that entered and
    /// left.
    pub(crate) inside: AtomicU64,
    /// How often the last of them has left.
    pub(super) quiet: AtomicUsize,
}

/// Task, soft interrupt, hard interrupt.
const CONTEXTS: usize = 3;

impl HostedConfig {
    /// Builds the machine.
    ///
    /// # Errors
    /// As [`HostedError`] says: malformed ranges, or a host that refuses.
    pub fn build(self) -> Result<Hosted, HostedError> {
        Hosted::new(self)
    }
}

impl Hosted {
    /// Builds the machine that `config` describes.
    ///
    /// # Errors
    /// As [`HostedError`] says: malformed ranges, or a host that refuses.
    pub fn new(config: HostedConfig) -> Result<Self, HostedError> {
        let arena = Arena::new(&config)?;
        if !cfg!(miri) {
            barriers::register()?;
        }
        Ok(Self::on(arena, config))
    }

    /// Switches the machine off and builds `config`, on the same memory if the ranges and the backing are the
    /// same. The memory then holds the first machine's contents, as a real machine's does after a restart,
    /// and the host does not clear it again.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn restart(self, config: HostedConfig) -> Result<Self, HostedError> {
        config.checked_span()?;
        let old = &self.config;
        let same = old.ranges == config.ranges
            && (old.backing, old.huge_pages) == (config.backing, config.huge_pages)
            && old.prefault >= config.prefault;
        if same { Ok(Self::on(self.arena, config)) } else { Self::new(config) }
    }

    fn on(arena: Arena, config: HostedConfig) -> Self {
        Self {
            arena,
            files: SyntheticFiles::new(),
            failures: Failures::default(),
            tlbs: Tlbs::new(&config),
            nested: NestedTables::new(watched_frames(&config)),
            violations: Violations::default(),
            ledger: ledger(&config),
            born: Instant::now(),
            spins: AtomicU64::new(0),
            online: (0..config.cpus).fold(AtomicCpuSet::new(), |online, cpu| {
                online.insert(CpuId(cpu as u32));
                online
            }),
            counters: (0..config.cpus * CONTEXTS).map(|_| CpuCounters::default()).collect(),
            taken: (0..config.cpus).map(|_| AtomicBool::new(false)).collect(),
            inside: AtomicU64::new(0),
            quiet: AtomicUsize::new(0),
            config,
        }
    }

    /// How the machine was built.
    pub fn config(&self) -> &HostedConfig {
        &self.config
    }

    /// The machine's memory.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The machine's memory ranges, in ascending order.
    pub fn ranges(&self) -> &[MemoryRange] {
        self.arena.ranges()
    }

    /// Whether the byte at `addr` is memory of this machine.
    pub fn is_memory(&self, addr: PhysAddr) -> bool {
        self.arena.contains(addr)
    }

    /// The machine's files.
    pub fn files(&self) -> &SyntheticFiles {
        &self.files
    }

    /// Decides which allocations fail from now on, and counts them from 0.
    pub fn set_failures(&self, plan: FailurePlan) {
        self.failures.set(plan);
    }

    /// Allocations since the failure plan was set (none are counted under [`FailurePlan::Off`]).
    pub fn allocations_asked(&self) -> u64 {
        self.failures.asked()
    }

    /// Allocations that failed by the current plan.
    pub fn allocations_failed(&self) -> u64 {
        self.failures.failed()
    }

    /// Loses the `n`-th flush from now on (local or remote, numbered from 0): the modelled TLBs ignore it,
    /// though the caller is told that it was done. This canary shows that a checking run catches a missing
    /// flush.
    pub fn drop_flush(&self, n: u64) {
        self.lose_flushes(FailurePlan::Nth(n));
    }

    /// Decides which flushes are lost from now on, and counts them from 0; as [`Self::drop_flush`].
    pub fn lose_flushes(&self, plan: FailurePlan) {
        self.tlbs.losses.set(plan);
    }

    /// Decides which roots are loaded with what the CPU kept of them though it may not be good, counted from
    /// 0: a load that forgets to flush, on a machine whose CPUs keep translations.
    pub fn load_stale_roots(&self, plan: FailurePlan) {
        self.tlbs.stale_loads.set(plan);
    }

    /// Flushes since [`Self::lose_flushes`] (none are counted under [`FailurePlan::Off`]).
    pub fn flushes_asked(&self) -> u64 {
        self.tlbs.losses.asked()
    }

    /// Turns that CPUs have spent in spin loops: a CPU whose turns go on waits for a lock or another CPU.
    pub fn spin_turns(&self) -> u64 {
        self.spins.load(Ordering::Relaxed)
    }

    /// Flushes that were lost by the current plan.
    pub fn flushes_lost(&self) -> u64 {
        self.tlbs.losses.failed()
    }

    /// The machine's work, over all CPUs. Exact whenever no CPU runs.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.counters.iter().for_each(|cpu| cpu.add_to(&mut sum));
        sum
    }

    /// Puts all counts to zero. No CPU may run meanwhile, or its counts may be lost.
    pub fn reset_counters(&self) {
        self.counters.iter().for_each(CpuCounters::reset);
    }

    /// The CPU that the running thread is.
    ///
    /// # Panics
    /// When it is none of this machine.
    #[inline]
    pub fn this_cpu(&self) -> CpuId {
        match Task::with(|task| task.cpu_of(self.identity())) {
            Some(cpu) => cpu,
            None => not_a_cpu(),
        }
    }

    /// The counts of the running CPU.
    #[inline]
    pub(crate) fn own_counters(&self) -> &CpuCounters {
        let context = Task::with(Task::context);
        &self.counters[self.this_cpu().index() * CONTEXTS + context as usize]
    }

    /// The machine's identity for its threads: its address, which does not change while one of them is a CPU
    /// of it.
    #[inline(always)]
    pub(crate) fn identity(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}

/// The end of the memory of a machine that checks frees; zero for others.
fn watched_frames(config: &HostedConfig) -> u64 {
    let last = config.ranges.last().filter(|_| config.tlb_model);
    last.map_or(0, |range| range.end().0 / FRAME_SIZE)
}

/// Of all memory, on a machine that watches clears.
fn ledger(config: &HostedConfig) -> Option<Ledger> {
    let (first, last) = (config.ranges.first()?, config.ranges.last()?);
    let frame = |addr: PhysAddr| addr.0 / FRAME_SIZE;
    config.watch_clears.then(|| Ledger::new(frame(first.start), frame(last.end())))
}

#[cold]
#[inline(never)]
pub(crate) fn not_a_cpu() -> ! {
    panic!(
        "this thread is no CPU of this machine: wrap the work in `Hosted::run_on` or `Hosted::spawn_cpus`"
    );
}
