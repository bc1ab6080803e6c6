//! How much memory programs may still ask for. Until it touches a page, a program has only been promised it.

use core::sync::atomic::Ordering;

use quire::limits::FRAME_SIZE;
use quire::vm::Mm;
use quire_interop::proc::is_charged;

use super::settings::SETTINGS;
use crate::errno::Errno;
use crate::memory::manager::manager;
use crate::memory::platform::Machine;
use crate::task::table;

/// The rule that refuses overcommit.
const NEVER: u64 = 2;

/// Whether memory may be mapped that no promise covers (`MAP_NORESERVE`).
pub fn may_overcommit() -> bool {
    SETTINGS.overcommit_memory.load(Ordering::Relaxed) != NEVER
}

/// Whether a program may be promised that many bytes more, by the rule that the user chose.
pub fn allows(bytes: u64) -> bool {
    let pages = bytes.div_ceil(FRAME_SIZE);
    match SETTINGS.overcommit_memory.load(Ordering::Relaxed) {
        0 => pages <= manager().pages().total_frames(),
        1 => true,
        _ => is_below_limit(pages),
    }
}

/// Whether a child may be promised what a space was.
pub fn allows_fork(space: &Mm<'_, Machine>) -> bool {
    let mut largest = 0;
    match SETTINGS.overcommit_memory.load(Ordering::Relaxed) {
        0 => {
            space.vmas(|vma| largest = largest.max(if is_charged(vma) { vma.range.pages() } else { 0 }));
            largest <= manager().pages().total_frames()
        }
        1 => true,
        _ => is_below_limit(charged(space)),
    }
}

/// Whether that many pages more can be promised. Without memory to count what is promised, none can.
fn is_below_limit(pages: u64) -> bool {
    committed().is_ok_and(|committed| committed.saturating_add(pages) <= limit())
}

/// The most that may be promised when overcommit is refused (`CommitLimit`), in pages.
pub fn limit() -> u64 {
    let kib = SETTINGS.overcommit_kbytes.load(Ordering::Relaxed);
    if kib > 0 {
        return kib / 4;
    }
    total().saturating_sub(pool_pages()) * SETTINGS.overcommit_ratio.load(Ordering::Relaxed) / 100
}

/// The pages in pools of huge pages.
pub fn pool_pages() -> u64 {
    manager().huge_lines().find(|(name, _)| *name == "Hugetlb").map_or(0, |(_, kib)| kib / 4)
}

/// What is promised now (`Committed_AS`), in pages: private memory that can be stored to, and shared memory that
/// exists.
///
/// # Errors
/// [`Errno::ENOMEM`]: there are so many processes that a list of their address spaces finds no memory.
pub fn committed() -> Result<u64, Errno> {
    let spaces = table::processes().filter_map(|process| process.space_handle());
    let mut seen = alloc::vec::Vec::new();
    let mut pages = manager().meminfo().shmem;
    for space in spaces {
        // The parent and the child of a `vfork` have the same one.
        if !seen.contains(&space.number()) {
            // Not `list::reserve`: the text of `/proc/meminfo` is wanted when memory is short, too.
            seen.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            seen.push(space.number());
            pages += charged(&space);
        }
    }
    Ok(pages)
}

fn charged(space: &Mm<'_, Machine>) -> u64 {
    let mut pages = 0;
    space.vmas(|vma| pages += if is_charged(vma) { vma.range.pages() } else { 0 });
    pages
}

fn total() -> u64 {
    let frames = manager().pages().memory_info();
    frames.total - frames.metadata
}
