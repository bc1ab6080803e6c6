//! The machine as a value: what it is made of, and threads that run as its CPUs.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use quire::addr::PhysAddr;
use quire::cpu::{AtomicCpuSet, CpuId};
use quire::limits::FRAME_SIZE;
use quire::platform::Context;

use crate::arena::Arena;
use crate::config::{HostedConfig, MemoryRange};
use crate::counters::{Counters, CpuCounters};
use crate::error::HostedError;
use crate::failures::{FailurePlan, Failures};
use crate::files::SyntheticFiles;
use crate::nested::NestedTables;
use crate::task::{Entered, Task};
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
    pub(crate) born: Instant,
    pub(crate) online: AtomicCpuSet,
    /// [`CONTEXTS`] for each CPU: an interrupt never counts where the code below it is counting.
    counters: Box<[CpuCounters]>,
    taken: Box<[AtomicBool]>,
    /// Threads that run as a CPU, those that wait for others as [`Self::spawn_cpus`] has them do not counted: how many in
    /// the low half, and above it how many have entered, so that who looks twice sees one that came and went.
    pub(crate) inside: AtomicU64,
    /// Times that the last of them has left.
    quiet: AtomicUsize,
}

/// Task, soft interrupt, hard interrupt.
const CONTEXTS: usize = 3;

impl Hosted {
    /// Builds the machine that `config` describes.
    ///
    /// # Errors
    /// As [`HostedError`] says: malformed ranges, or a host that refuses.
    pub fn new(config: HostedConfig) -> Result<Self, HostedError> {
        let arena = Arena::new(&config)?;
        if !cfg!(miri) {
            crate::platform::register_barriers()?;
        }
        Ok(Self::on(arena, config))
    }

    /// Switches the machine off and builds what `config` describes, on the same memory if that has the same ranges and the
    /// same backing. Then the memory holds what the first machine left in it, as a real machine's does after a restart, and
    /// the host clears none anew.
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
            born: Instant::now(),
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

    /// How many allocations asked since the failure plan was set (none are counted under [`FailurePlan::Off`]).
    pub fn allocations_asked(&self) -> u64 {
        self.failures.asked()
    }

    /// How many allocations failed by the failure plan in force.
    pub fn allocations_failed(&self) -> u64 {
        self.failures.failed()
    }

    /// Loses the `n`-th flush from now on (local or remote, numbered from 0): the modelled TLBs do not see it, though the
    /// caller is told that it was done. The canary that shows a checking run to be able to catch a missing flush.
    pub fn drop_flush(&self, n: u64) {
        self.lose_flushes(FailurePlan::Nth(n));
    }

    /// Decides which flushes are lost from now on, and counts them from 0; as [`Self::drop_flush`].
    pub fn lose_flushes(&self, plan: FailurePlan) {
        self.tlbs.losses.set(plan);
    }

    /// How many flushes were asked for since [`Self::lose_flushes`] (none are counted under [`FailurePlan::Off`]).
    pub fn flushes_asked(&self) -> u64 {
        self.tlbs.losses.asked()
    }

    /// How many flushes were lost by the plan in force.
    pub fn flushes_lost(&self) -> u64 {
        self.tlbs.losses.failed()
    }

    /// What the machine was asked to do, over all CPUs. Exact whenever no CPU runs.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.counters.iter().for_each(|cpu| cpu.add_to(&mut sum));
        sum
    }

    /// Puts all counts to zero. No CPU may run meanwhile, or its counts may be lost.
    pub fn reset_counters(&self) {
        self.counters.iter().for_each(CpuCounters::reset);
    }

    /// Runs `action` on this thread as CPU `cpu`. Calls nest: a thread may be a CPU of several machines in turn.
    ///
    /// # Panics
    /// When the machine has no such CPU or it is offline, when another thread is that CPU now (H3), or when `action`
    /// leaves a lock held or a pin not undone.
    pub fn run_on<R>(&self, cpu: CpuId, action: impl FnOnce() -> R) -> R {
        assert!(
            cpu.index() < self.config.cpus,
            "{cpu:?} does not exist: the machine has {} CPUs",
            self.config.cpus
        );
        if Task::with(|task| task.cpu_of(self.identity())) == Some(cpu) {
            return action();
        }
        let _taken = Taken::take(&self.taken[cpu.index()], cpu);
        assert!(
            self.online.snapshot().contains(cpu),
            "{cpu:?} is offline: bring it back with `Hosted::set_online`"
        );
        let _inside = Inside::enter(self);
        let _entered = Entered::cpu(self.identity(), cpu);
        action()
    }

    /// Takes a CPU out of those that run, or brings it back. All are online when the machine is built. What an offline
    /// CPU kept for itself stays where it is, and its modelled TLB too, as with one that sleeps.
    ///
    /// # Panics
    /// When the machine has no such CPU, or when a thread runs as a CPU that is to go offline.
    pub fn set_online(&self, cpu: CpuId, online: bool) {
        assert!(
            cpu.index() < self.config.cpus,
            "{cpu:?} does not exist: the machine has {} CPUs",
            self.config.cpus
        );
        if online {
            return self.online.insert(cpu);
        }
        // Nobody can be the CPU while it is taken.
        let _taken = Taken::take(&self.taken[cpu.index()], cpu);
        self.online.remove(cpu);
    }

    /// Runs `action` on `count` threads of their own, as CPUs 0 to `count - 1`, and gives the results in that order. A
    /// caller that is a CPU of this machine steps aside until they are done. A panic of one is passed on at the end.
    ///
    /// # Panics
    /// When the machine has fewer CPUs, when one of them is offline or taken by another thread, or when the caller is pinned.
    pub fn spawn_cpus<R: Send>(&self, count: usize, action: impl Fn(CpuId) -> R + Sync) -> Vec<R> {
        self.spawn(count, &[], action)
    }

    /// As [`Self::spawn_cpus`], each thread bound to one of these processors of the host in turn, whatever the calling thread
    /// is bound to; best effort, as the host may forbid it.
    pub fn spawn_pinned_cpus<R: Send>(
        &self,
        count: usize,
        processors: &[usize],
        action: impl Fn(CpuId) -> R + Sync,
    ) -> Vec<R> {
        self.spawn(count, processors, action)
    }

    fn spawn<R: Send>(
        &self,
        count: usize,
        processors: &[usize],
        action: impl Fn(CpuId) -> R + Sync,
    ) -> Vec<R> {
        let caller = Task::with(|task| {
            assert!(task.pins() == 0, "a pinned task cannot wait for other CPUs");
            task.cpu_of(self.identity())
        });
        let away = caller.map(|cpu| {
            let outside = self.quiet().map(|_| Outside::leave(self));
            let aside = Aside::step(&self.taken[cpu.index()], cpu);
            (outside, aside, Entered::nobody())
        });
        let results = std::thread::scope(|scope| {
            let action = &action;
            let threads = (0..count).map(|index| {
                scope.spawn(move || {
                    if let Some(&processor) = processors.get(index % processors.len().max(1)) {
                        bind_to_processor(processor);
                    }
                    let cpu = CpuId(index as u32);
                    self.run_on(cpu, || action(cpu))
                })
            });
            let threads = threads.collect::<Vec<_>>();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        // The caller becomes its CPU again before a panic of one of the threads goes on.
        if let Some((outside, aside, entered)) = away {
            drop(entered);
            drop(aside);
            drop(outside);
        }
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    }

    /// Runs `action` as an interrupt that arrives on the running CPU now: [`Context`] as given, on top of whatever the
    /// task holds. A hard interrupt runs with interrupts off.
    ///
    /// # Panics
    /// When the thread is no CPU of this machine, when interrupts are off, when a soft interrupt would arrive on top of
    /// an interrupt, or when `action` leaves a lock held or a pin not undone.
    pub fn interrupt<R>(&self, context: Context, action: impl FnOnce() -> R) -> R {
        let _ = self.this_cpu();
        let _entered = Entered::interrupt(context);
        action()
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

    /// What names the machine to its threads: its address, at which it stays while any of them is a CPU of it.
    #[inline(always)]
    pub(crate) fn identity(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}

/// Where the memory of a machine ends that looks at frees; zero for others.
fn watched_frames(config: &HostedConfig) -> u64 {
    let last = config.ranges.last().filter(|_| config.tlb_model);
    last.map_or(0, |range| range.end().0 / FRAME_SIZE)
}

#[cold]
#[inline(never)]
pub(crate) fn not_a_cpu() -> ! {
    panic!(
        "this thread is no CPU of this machine: wrap the work in `Hosted::run_on` or `Hosted::spawn_cpus`"
    );
}

/// A CPU that this thread has taken, until dropped.
struct Taken<'a>(&'a AtomicBool);

impl<'a> Taken<'a> {
    fn take(flag: &'a AtomicBool, cpu: CpuId) -> Self {
        assert!(!flag.swap(true, Ordering::Acquire), "{cpu:?} is taken: another thread runs as this CPU");
        Self(flag)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// As often is a machine that becomes quiet looked at each time.
const COMPARED_EACH: usize = 64;

/// Later, once in as many times: a replay enters and leaves for each of its events, with full TLBs.
const COMPARED_ONCE_IN: usize = 512;

/// What a thread that enters adds to [`Hosted::inside`].
const ENTERED: u64 = 1 << 32 | 1;

/// How many threads run as a CPU, by [`Hosted::inside`].
fn threads(inside: u64) -> u64 {
    inside & u64::from(u32::MAX)
}

/// The machine when no other thread was a CPU of it.
pub(crate) struct Quiet(u64);

impl Hosted {
    /// The machine as it is, if the running thread can be in the middle of no verb, and no other thread is a CPU.
    pub(crate) fn quiet(&self) -> Option<Quiet> {
        let inside = self.inside.load(Ordering::Acquire);
        (threads(inside) == 1 && Task::with(Task::is_between_verbs)).then_some(Quiet(inside))
    }

    /// Whether no other thread has entered since. What was read before from a page table is then what no verb under way has
    /// written: a thread enters before it writes, and who reads what it wrote sees that it entered.
    pub(crate) fn is_still(&self, quiet: &Quiet) -> bool {
        self.inside.load(Ordering::Acquire) == quiet.0
    }
}

/// A thread that runs as a CPU of the machine, until dropped. The last one to leave looks whether a flush was forgotten.
struct Inside<'a>(Option<&'a Hosted>);

impl<'a> Inside<'a> {
    /// A thread that becomes another CPU for a while is one thread still.
    fn enter(machine: &'a Hosted) -> Self {
        let first = Task::with(|task| task.cpu_of(machine.identity()).is_none());
        Self(first.then(|| {
            machine.inside.fetch_add(ENTERED, Ordering::AcqRel);
            machine
        }))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let Some(machine) = self.0 else { return };
        let left = machine.inside.fetch_sub(1, Ordering::AcqRel) - 1;
        if threads(left) == 0 && !std::thread::panicking() {
            let times = machine.quiet.fetch_add(1, Ordering::Relaxed);
            if times < COMPARED_EACH || times.is_multiple_of(COMPARED_ONCE_IN) {
                machine.check_translations_at(&Quiet(left));
            }
        }
    }
}

/// A thread that waits for others between two verbs, until dropped.
struct Outside<'a>(&'a Hosted);

impl<'a> Outside<'a> {
    fn leave(machine: &'a Hosted) -> Self {
        machine.inside.fetch_sub(1, Ordering::AcqRel);
        Self(machine)
    }
}

impl Drop for Outside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_add(ENTERED, Ordering::AcqRel);
    }
}

/// A CPU that this thread gave away for a while, taken back when dropped.
struct Aside<'a>(&'a AtomicBool, CpuId);

impl<'a> Aside<'a> {
    fn step(flag: &'a AtomicBool, cpu: CpuId) -> Self {
        flag.store(false, Ordering::Release);
        Self(flag, cpu)
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        assert!(!self.0.swap(true, Ordering::Acquire), "{:?} was taken by another thread meanwhile", self.1);
    }
}

/// Binds the running thread to a processor.
fn bind_to_processor(processor: usize) {
    #[cfg(not(miri))]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        let mut one = CpuSet::new();
        one.set(processor);
        // A sandbox that forbids it makes timings noisier and nothing else.
        let _ = sched_setaffinity(None, &one);
    }
    #[cfg(miri)]
    let _ = processor;
}
