//! Soft-dirty bits and the marks of a userfaultfd handler: what sets, keeps, moves and drops them.

use hosted::Hosted;
use quire::addr::{Order, VirtAddr};
use quire::error::{FaultError, MmError};
use quire::vm::{Access, Advice, FolioPolicy, Remap};

use crate::vm::world::{MIB, Manager, R, RW, Space, anonymous, load, run, small, store};

const BASE: u64 = 0x4000_0000;
const LEN: u64 = 4 * MIB;

/// Memory of which every fourth page, or every 2 MiB, was stored to.
fn scene(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, large: bool) {
    let order = if large { Order::BLOCK } else { Order::FRAME };
    manager.set_folio_policy(FolioPolicy::only(order));
    mm.mmap(&anonymous(BASE, LEN)).unwrap();
    for at in (BASE..BASE + LEN).step_by(4 * 4096) {
        store(machine, mm, at, at).unwrap();
    }
}

fn soft_dirty(mm: &Space<'_>, base: u64) -> u64 {
    (base..base + LEN).step_by(4096).filter(|&at| mm.is_soft_dirty(VirtAddr(at))).count() as u64
}

#[test]
fn pages_are_soft_dirty_again_once_they_are_stored_to() {
    for large in [false, true] {
        small(|machine, manager| {
            run(manager, |mm| {
                scene(machine, manager, mm, large);
                let stored = if large { LEN / 4096 } else { LEN / 4096 / 4 };
                assert_eq!(soft_dirty(mm, BASE), stored);
                mm.clear_soft_dirty(VirtAddr(BASE), LEN).unwrap();
                for at in (BASE..BASE + LEN).step_by(4 * 4096) {
                    assert_eq!(load(machine, mm, at), Ok(at), "a load is no store");
                }
                // Rights that are given back do not hide the next store.
                mm.mprotect(VirtAddr(BASE), LEN, R).unwrap();
                mm.mprotect(VirtAddr(BASE), LEN, RW).unwrap();
                assert_eq!(soft_dirty(mm, BASE), 0);
                // Of a part only: a large leaf is split.
                store(machine, mm, BASE + 0x8000, 5).unwrap();
                assert_eq!(soft_dirty(mm, BASE), if large { 512 } else { 1 });
                mm.clear_soft_dirty(VirtAddr(BASE + 0x4000), 0x2000).unwrap();
                let left = if large { 510 } else { 1 };
                let child = mm.fork().unwrap();
                assert_eq!((soft_dirty(mm, BASE), soft_dirty(&child, BASE)), (left, left));
                child.exit();
                let to = VirtAddr(BASE + 64 * MIB + 4096);
                assert_eq!(mm.mremap(VirtAddr(BASE), LEN, LEN, Remap::Fixed(to)), Ok(to));
                assert_eq!(soft_dirty(mm, to.0), left);
                mm.madvise(to, LEN, Advice::Free).unwrap();
                assert_eq!(soft_dirty(mm, to.0), left, "lazily freed pages stay soft-dirty");
                mm.madvise(to, LEN, Advice::DontNeed).unwrap();
                assert_eq!(soft_dirty(mm, to.0), 0);
            });
        });
    }
}

/// Invariant W3.
#[test]
fn a_marked_page_is_not_stored_to_until_its_handler_says_so() {
    for large in [false, true] {
        small(|machine, manager| {
            run(manager, |mm| {
                scene(machine, manager, mm, large);
                mm.write_protect_marked(VirtAddr(BASE), LEN).unwrap();
                let refused = |mm: &Space<'_>, at| {
                    assert_eq!(mm.fault(VirtAddr(at), Access::Write), Err(FaultError::Marked), "{at:#x}");
                };
                let at = BASE + MIB;
                assert_eq!(store(machine, mm, at, 1), Err(FaultError::Marked));
                assert_eq!(load(machine, mm, at), Ok(at));
                mm.mprotect(VirtAddr(BASE), LEN, R).unwrap();
                mm.mprotect(VirtAddr(BASE), LEN, RW).unwrap();
                refused(mm, at);
                // The child has no handler: it copies. The parent still has one.
                let child = mm.fork().unwrap();
                child.fault(VirtAddr(at), Access::Write).unwrap();
                refused(mm, at);
                child.exit();
                let to = VirtAddr(BASE + 64 * MIB + 4096);
                assert_eq!(mm.mremap(VirtAddr(BASE), LEN, LEN, Remap::Fixed(to)), Ok(to));
                let at = to.0 + MIB;
                refused(mm, at);
                mm.munmap(to, 4096).unwrap();
                refused(mm, at);
                mm.remove_write_protect_marks(VirtAddr(at), 4096).unwrap();
                store(machine, mm, at, 7).unwrap();
                assert_eq!(load(machine, mm, at), Ok(7));
                refused(mm, at + 4 * 4096);
                // Unmapping a page removes its mark.
                mm.madvise(to.add(4096), LEN - 4096, Advice::DontNeed).unwrap();
                store(machine, mm, at + 4 * 4096, 8).unwrap();
            });
        });
    }
}

#[test]
fn ranges_that_are_none_are_refused() {
    small(|machine, manager| {
        run(manager, |mm| {
            scene(machine, manager, mm, false);
            assert_eq!(mm.clear_soft_dirty(VirtAddr(BASE + 1), 4096), Err(MmError::Invalid));
            assert_eq!(mm.write_protect_marked(VirtAddr(u64::MAX - 4095), 4096), Err(MmError::Invalid));
            assert_eq!(mm.remove_write_protect_marks(VirtAddr(1 << 47), 4096), Err(MmError::Invalid));
            mm.clear_soft_dirty(VirtAddr(BASE - MIB), 8 * MIB).unwrap();
            assert_eq!(soft_dirty(mm, BASE), 0, "holes are fine");
        });
    });
}
