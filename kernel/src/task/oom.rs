//! What happens when no memory is left: the process with the largest resident set is killed, with those that share its
//! address space, and the rest goes on.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general as abi;
use quire::addr::{VirtAddr, VirtRange};
use quire::limits::FRAME_SIZE;
use quire::vm::Advice;

use super::process::{Exit, Process};
use super::thread::Task;
use super::{sched, table};
use crate::device::serial::log;
use crate::files::stored;
use crate::memory::manager::{self, Space, manager};
use crate::observe::badness;

/// How often other tasks get the CPU before the caller tries again.
const PATIENCE: usize = 1000;
/// How often a task tries again at one address before a process is killed: a failure may pass, as other CPUs free memory.
const TRIES: u64 = 8;
/// The same while there are pages to reclaim. They may be those that the task needs, so this has an end too.
const TRIES_WITH_CACHE: u64 = 64;

/// The number of the process that was killed last, or 0. Until it has ended, no other one is.
static VICTIM: AtomicU32 = AtomicU32::new(0);
/// The number of the address space whose anonymous memory was discarded last, or 0. Until all its processes have ended,
/// no other one's is.
static DISCARDED: AtomicU64 = AtomicU64::new(0);

/// Makes room, as a task that holds no spin lock. The caller tries again what failed, unless it must end: a fault at
/// this address, or whatever 0 stands for.
///
/// The victim may wait for a lock that the caller holds. So its memory is taken before it has ended, and the wait
/// for its end is bounded.
pub fn make_room(failed_at: VirtAddr) {
    let task = sched::current_ref();
    let tries = task.usage.note_shortage(failed_at.0);
    if tries == 1 || task.is_dying() {
        return;
    }
    // Pages of disks can be dropped once they are written.
    let can_reclaim = stored::sync_all().is_ok() && manager().reclaim() > 0;
    if tries < (if can_reclaim { TRIES_WITH_CACHE } else { TRIES }) {
        return sched::schedule();
    }
    let Some(victim) = choose(task) else { return };
    reap(&victim);
    for _ in 0..PATIENCE {
        if victim.has_ended() || sched::current_ref().is_dying() {
            break;
        }
        sched::schedule();
        core::hint::spin_loop();
    }
}

/// Fills the reserve of the kernel's heap again, of which the task may have used some, before its program runs on.
pub fn refill_heap(task: &Task) {
    let mut is_short = false;
    while !manager::refill_heap() && !task.is_dying() {
        is_short = true;
        make_room(VirtAddr(0));
    }
    if is_short {
        task.usage.end_shortage(0);
    }
}

/// Whether the memory of an address space may read as zeroes that no program has stored. Asked after a copy: what was
/// copied must get nowhere then.
pub fn is_discarded(space: &Space) -> bool {
    DISCARDED.load(Ordering::SeqCst) == space.number()
}

/// Whether a process has this address space.
fn has_space(process: &Process, number: u64) -> bool {
    process.space.lock().as_ref().is_some_and(|space| space.number() == number)
}

/// Discards the anonymous memory of a process that will never run its program again, if that is true of all processes
/// that share it.
fn reap(victim: &Process) {
    let Some(space) = victim.space_handle() else { return };
    if table::processes().any(|process| process.exit().is_none() && has_space(&process, space.number())) {
        return;
    }
    DISCARDED.store(space.number(), Ordering::SeqCst);
    let mut from = VirtAddr(0);
    while let Some(range) = next_anonymous(&space, from) {
        // A locked mapping refuses, and goes at the process's end.
        let _ = space.madvise(range.start, range.end.0 - range.start.0, Advice::DontNeed);
        from = range.end;
    }
}

/// The first anonymous mapping from an address on. Nothing is allocated on the way.
fn next_anonymous(space: &Space, from: VirtAddr) -> Option<VirtRange> {
    let mut found = None;
    space.vmas(|vma| {
        if found.is_none() && vma.range.start >= from && vma.file.is_none() {
            found = Some(vma.range);
        }
    });
    found
}

/// A process that was killed and has not ended.
fn dying() -> Option<Arc<Process>> {
    let (last, discarded) = (VICTIM.load(Ordering::Relaxed), DISCARDED.load(Ordering::Relaxed));
    let was_killed = |process: &Process| process.id == last || has_space(process, discarded);
    table::processes().find(|process| process.exit().is_some() && !process.has_ended() && was_killed(process))
}

/// A process that is dying already, or else the one with the most memory, which is killed: the task's own if all
/// are protected. `None` if another CPU has chosen meanwhile.
fn choose(task: &Task) -> Option<Arc<Process>> {
    let last = VICTIM.load(Ordering::Relaxed);
    if let Some(dying) = dying() {
        return Some(dying);
    }
    let victim = table::processes().filter(|process| process.exit().is_none());
    let scored = victim.filter_map(|process| Some((badness(&process)?, process)));
    let largest = scored.max_by_key(|(badness, _)| *badness);
    let victim = largest.map_or_else(|| task.process.clone(), |(_, victim)| victim);
    VICTIM.compare_exchange(last, victim.id, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    kill(&victim);
    // A child of `vfork` shares its parent's memory. One that is made from now on is killed by `run::launch`.
    if let Some(space) = victim.space_handle() {
        let sharing = table::processes().filter(|process| has_space(process, space.number()));
        sharing.filter(|process| process.exit().is_none()).for_each(|process| kill(&process));
    }
    Some(victim)
}

fn kill(victim: &Process) {
    let (id, kib) = (victim.id, resident(victim) * FRAME_SIZE / 1024);
    let name = victim.identity.lock().name;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default().escape_ascii();
    log!("out of memory: process {id} ({name}) is killed, which has {kib} kB");
    victim.begin_exit(Exit::Killed(abi::SIGKILL));
}

/// The pages that a process has in memory.
pub fn resident(process: &Process) -> u64 {
    let Some(space) = process.space_handle() else { return 0 };
    let rss = space.rss();
    rss.anon + rss.file + rss.shmem
}
