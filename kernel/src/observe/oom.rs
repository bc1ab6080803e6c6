//! How much would be gained by killing a process, when memory is out.

use core::sync::atomic::Ordering;

use crate::memory::manager::manager;
use crate::task::oom::resident;
use crate::task::process::Process;

/// The `oom_score_adj` of a process that is never killed.
const NEVER: i32 = -1000;

/// The pages that a process has in memory, page tables included, and as many thousandths of all memory as its
/// `oom_score_adj` says. `None` for one that must not be killed.
pub fn badness(process: &Process) -> Option<i64> {
    let adj = process.account.oom_score_adj.load(Ordering::Relaxed);
    let tables = process.space_handle().map_or(0, |space| space.rss().page_tables);
    let share = i64::from(adj) * total_pages() / 1000;
    (adj > NEVER).then(|| (resident(process) + tables) as i64 + share)
}

/// `/proc/PID/oom_score`: the badness in thousandths of all memory, moved to positive numbers as Linux does.
pub fn score(process: &Process) -> i64 {
    let Some(badness) = badness(process) else { return 0 };
    ((1000 + badness * 1000 / total_pages().max(1)) * 2 / 3).max(0)
}

fn total_pages() -> i64 {
    let frames = manager().pages().memory_info();
    (frames.total - frames.metadata) as i64
}
