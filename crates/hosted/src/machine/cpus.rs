//! Threads that run as CPUs of a machine. The machine is quiet while no thread is in the middle of a verb.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use quire::cpu::CpuId;
use quire::platform::Context;

use super::hosted::Hosted;
use crate::task::{Entered, Task};

impl Hosted {
    /// Runs `action` on this thread as CPU `cpu`. Calls nest: a thread may be a CPU of several machines in turn.
    ///
    /// # Panics
    /// When the machine has no such CPU or it is offline, when another thread is that CPU now (H3), or when `action`
    /// leaves a lock held or a pin not undone.
    pub fn run_on<R>(&self, cpu: CpuId, action: impl FnOnce() -> R) -> R {
        let _on = self.become_cpu(cpu);
        action()
    }

    /// Makes this thread CPU `cpu` until the result is dropped; `None` if it is that CPU already. Apart from
    /// [`Self::run_on`], which is compiled once for each action.
    fn become_cpu(&self, cpu: CpuId) -> Option<OnCpu<'_>> {
        assert!(
            cpu.index() < self.config.cpus,
            "{cpu:?} does not exist: the machine has {} CPUs",
            self.config.cpus
        );
        if Task::with(|task| task.cpu_of(self.identity())) == Some(cpu) {
            return None;
        }
        let taken = Taken::take(&self.taken[cpu.index()], cpu);
        assert!(
            self.online.snapshot().contains(cpu),
            "{cpu:?} is offline: bring it back with `Hosted::set_online`"
        );
        let inside = Inside::enter(self);
        Some(OnCpu { _entered: Entered::cpu(self.identity(), cpu), _inside: inside, _taken: taken })
    }

    /// Takes a CPU offline or online. All are online when the machine is built. An offline CPU's per-CPU data
    /// and its modelled TLB stay, as with a CPU that sleeps.
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
        // While the CPU is taken, no thread can become it.
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
        let results: Vec<_> = (0..count).map(|_| Mutex::new(None)).collect();
        self.spawn_each(count, processors, &|cpu| {
            let result = action(cpu);
            *results[cpu.index()].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        });
        let result =
            |slot: Mutex<Option<R>>| slot.into_inner().ok().flatten().expect("each thread has ended");
        results.into_iter().map(result).collect()
    }

    /// As [`Self::spawn`], which is compiled once for each action; each thread keeps its own result.
    fn spawn_each(&self, count: usize, processors: &[usize], action: &(dyn Fn(CpuId) + Sync)) {
        let caller = Task::with(|task| {
            assert!(task.pins() == 0, "a pinned task cannot wait for other CPUs");
            task.cpu_of(self.identity())
        });
        let away = caller.map(|cpu| {
            let outside = self.quiet().map(|_| Outside::leave(self));
            let aside = Aside::step(&self.taken[cpu.index()], cpu);
            (outside, aside, Entered::no_cpu())
        });
        let ends = std::thread::scope(|scope| {
            let threads = (0..count).map(|index| {
                scope.spawn(move || {
                    if let Some(&processor) = processors.get(index % processors.len().max(1)) {
                        bind_to_processor(processor);
                    }
                    let cpu = CpuId(index as u32);
                    self.run_on(cpu, || action(cpu));
                })
            });
            let threads = threads.collect::<Vec<_>>();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        // The caller becomes its CPU again before the panic of a thread is passed on.
        if let Some((outside, aside, entered)) = away {
            drop(entered);
            drop(aside);
            drop(outside);
        }
        if let Some(panic) = ends.into_iter().find_map(Result::err) {
            std::panic::resume_unwind(panic);
        }
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
}

/// A thread that runs as a CPU, until dropped; its parts are undone in this order.
struct OnCpu<'a> {
    _entered: Entered,
    _inside: Inside<'a>,
    _taken: Taken<'a>,
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

/// At first, the translations of a machine are compared each time that it becomes quiet, this many times.
const COMPARED_EACH: usize = 64;

/// Later, once in this many times: a replay enters and leaves for each of its events, with full TLBs.
const COMPARED_ONCE_IN: usize = 512;

/// What a thread that enters adds to [`Hosted::inside`].
const ENTERED: u64 = 1 << 32 | 1;

/// The threads that run as a CPU, from [`Hosted::inside`].
fn threads(inside: u64) -> u64 {
    inside & u64::from(u32::MAX)
}

/// A moment at which no other thread was a CPU of the machine.
pub(crate) struct Quiet(u64);

impl Hosted {
    /// This moment, if the running thread is between verbs and no other thread is a CPU.
    pub(crate) fn quiet(&self) -> Option<Quiet> {
        let inside = self.inside.load(Ordering::Acquire);
        (threads(inside) == 1 && Task::with(Task::is_between_verbs)).then_some(Quiet(inside))
    }

    /// Whether no other thread has entered since. Then an earlier read of a page table saw no writes of a
    /// verb under way: a thread enters before it writes, and a reader of its writes sees that it entered.
    pub(crate) fn is_still(&self, quiet: &Quiet) -> bool {
        self.inside.load(Ordering::Acquire) == quiet.0
    }
}

/// A thread that runs as a CPU of the machine, until dropped. The last one to leave checks for missing
/// flushes.
struct Inside<'a>(Option<&'a Hosted>);

impl<'a> Inside<'a> {
    /// A thread that becomes another CPU for a while still counts once.
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
        // A sandbox that forbids it only makes timings noisier.
        let _ = sched_setaffinity(None, &one);
    }
    #[cfg(miri)]
    let _ = processor;
}
