//! What happens when no memory is left: the process with the largest resident set is killed, and the rest goes on.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use quire::addr::{VirtAddr, VirtRange};
use quire::limits::FRAME_SIZE;
use quire::vm::Advice;
use spin::Mutex;

use super::process::{Exit, Process};
use super::{sched, table};
use crate::device::serial::log;
use crate::files::stored;
use crate::memory::manager::{Space, manager};
use crate::observe::badness;

/// How often other tasks get the CPU before the caller tries again.
const PATIENCE: usize = 1000;

/// The number of the process that was killed last. Until it has ended, no other one is.
static VICTIM: Mutex<Option<u32>> = Mutex::new(None);

/// Makes room, as a task that holds no spin lock. The caller tries again what failed, unless it must end.
///
/// The victim may wait for a lock that the caller holds. So its memory is taken before it has ended, and the wait
/// for its end is bounded.
pub fn make_room() {
    if manager().reclaim() > 0 || sched::current_ref().is_dying() {
        return;
    }
    // Pages of disks can be dropped once they are written.
    if stored::sync_all().is_ok() && manager().reclaim() > 0 {
        return;
    }
    let Some(victim) = choose() else {
        panic!("out of memory, and no process is left to kill");
    };
    reap(&victim);
    for _ in 0..PATIENCE {
        if victim.has_ended() || sched::current_ref().is_dying() {
            break;
        }
        sched::schedule();
        core::hint::spin_loop();
    }
}

/// Discards the anonymous memory of a process that will never run its program again.
fn reap(victim: &Process) {
    let Some(space) = victim.space.lock().clone() else { return };
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

/// The process that is dying already, or else the one with the most memory, which is killed.
fn choose() -> Option<Arc<Process>> {
    let mut last = VICTIM.lock();
    let dying = last.and_then(table::process).filter(|victim| victim.exit().is_some() && !victim.has_ended());
    if dying.is_some() {
        return dying;
    }
    let victim = table::processes().into_iter().filter(|process| process.exit().is_none());
    let scored = victim.filter_map(|process| Some((badness(&process)?, process)));
    let (_, victim) = scored.max_by_key(|(badness, _)| *badness)?;
    log!(
        "out of memory: process {} ({}) is killed, which has {} kB",
        victim.id,
        victim.identity.lock().name.escape_ascii(),
        resident(&victim) * FRAME_SIZE / 1024
    );
    *last = Some(victim.id);
    drop(last);
    victim.begin_exit(Exit::Killed(abi::SIGKILL));
    Some(victim)
}

/// The pages that a process has in memory.
pub fn resident(process: &Process) -> u64 {
    let Some(space) = process.space.lock().clone() else { return 0 };
    let rss = space.rss();
    rss.anon + rss.file + rss.shmem
}
