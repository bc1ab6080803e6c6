//! Threads on CPUs: pinning, and running the same body on several CPUs at the same moment.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread until dropped; the CPUs it was allowed before are then allowed again.
pub struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    /// Pins the calling thread to `cpu`. Where the system refuses, the thread runs unpinned.
    pub fn to(cpu: usize) -> Self {
        let before = sched_getaffinity(None).ok();
        Self { before: if set(cpu) { before } else { None } }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Failing leaves the thread pinned, which changes speed and no result.
            let _ = sched_setaffinity(None, before);
        }
    }
}

fn set(cpu: usize) -> bool {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}

/// The CPUs that this process may run on, lowest first; never empty.
pub fn allowed_cpus() -> Vec<usize> {
    let cpus = match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    };
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// A meeting point that spins, because waking a sleeper takes longer than the work that is timed.
pub struct Meeting {
    members: usize,
    arrived: AtomicUsize,
}

impl Meeting {
    /// A meeting of `members` threads, to be used any number of times.
    pub fn of(members: usize) -> Self {
        Self { members, arrived: AtomicUsize::new(0) }
    }

    /// Returns once every member has arrived as often as the caller.
    pub fn wait(&self) {
        let ticket = self.arrived.fetch_add(1, Ordering::AcqRel);
        let full = (ticket / self.members + 1) * self.members;
        let mut spins = 0_u32;
        while self.arrived.load(Ordering::Acquire) < full {
            spins += 1;
            // With more threads than CPUs, a thread that is still missing may need this CPU.
            if spins.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

/// Runs `body` for every worker, each on its own thread pinned to a CPU of `cpus` (in turn, when there are more
/// workers than CPUs), and returns their results in order.
pub fn together<W: Send, T: Send>(
    workers: &mut [W],
    cpus: &[usize],
    body: impl Fn(&mut W, &Meeting) -> T + Sync,
) -> Vec<T> {
    let meeting = Meeting::of(workers.len());
    std::thread::scope(|scope| {
        let (body, meeting) = (&body, &meeting);
        let start = |(index, worker)| {
            let cpu = cpus[index % cpus.len()];
            scope.spawn(move || {
                let _pinned = Pinned::to(cpu);
                body(worker, meeting)
            })
        };
        let threads: Vec<_> = workers.iter_mut().enumerate().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, T>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}
