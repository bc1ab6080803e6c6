//! The background collapser, and its limits.

use quire::addr::{Order, VirtAddr};
use quire::stats::Stat;
use quire::vm::{Advice, CollapseLimits, Collapser, FolioPolicy, OrderPolicy, Refusal, Scanned};

use crate::filethp::support::{
    BASE, HUGE, PAGE, check, check_text, fill, frames, inside, is_large, shared, shmem, text,
};
use crate::filethp::world::{Manager, run, store};

/// Continues until it has visited everything. Returns the number of collapses and the last refusal.
fn round(manager: &Manager<'_>, collapser: &mut Collapser) -> (u64, Option<Refusal>) {
    manager.set_folio_policy(FolioPolicy::LINUX.with(Order::BLOCK, OrderPolicy::Madvise));
    let (mut collapsed, mut last) = (0, None);
    for _ in 0..1000 {
        let call: Scanned = manager.collapse_ahead(collapser);
        collapsed += call.collapsed.collapsed();
        last = call.collapsed.last.or(last);
        if call.full_scan {
            manager.set_folio_policy(FolioPolicy::FRAMES);
            return (collapsed, last);
        }
    }
    panic!("it comes to no end");
}

#[test]
fn it_collapses_what_was_advised() {
    shmem(|machine, manager, mm, file| {
        fill(machine, mm, BASE, 512..1024);
        let other = manager.new_mm().unwrap();
        other.mmap(&shared(file, BASE, 2 * HUGE)).unwrap();
        inside(mm, &other, || check(machine, &other, BASE, 0..1024));
        let mut collapser = Collapser::default();
        assert_eq!(round(manager, &mut collapser), (0, None));
        other.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
        assert_eq!(round(manager, &mut collapser), (1, None));
        // The other mapping was not advised, and need not be: the pages are already in place.
        check(machine, mm, BASE, 0..1024);
        assert!(is_large(machine, mm, BASE) && !is_large(machine, mm, BASE + HUGE));
        inside(mm, &other, || check(machine, &other, BASE, 0..1024));
        assert_eq!(round(manager, &mut collapser), (0, None));
        other.validate().unwrap();
        other.exit();
    });
}

#[test]
fn it_keeps_within_its_limits() {
    for (filled, none, wanted) in [(1, 511, true), (1, 510, false), (448, 64, true), (447, 64, false)] {
        frames(|machine, manager| {
            let file = manager.shmem(HUGE).unwrap();
            run(manager, |mm| {
                mm.mmap(&shared(&file, BASE, HUGE)).unwrap();
                mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
                fill(machine, mm, BASE, 0..filled);
                let limits = CollapseLimits { max_ptes_none: none, ..CollapseLimits::default() };
                let (collapsed, last) = round(manager, &mut Collapser::within(limits));
                assert_eq!((collapsed == 1, last.is_none()), (wanted, wanted), "{filled} and {none}");
                assert!(wanted || last == Some(Refusal::Holes));
                check(machine, mm, BASE, 0..filled);
                assert_eq!(file.resident(), if wanted { 512 } else { filled });
            });
        });
    }
}

/// Pages of a file that must be read count against the limit for swapped pages, as in Linux.
#[test]
fn it_reads_so_many_pages() {
    text(|machine, manager, mm, file| {
        mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::HugePage).unwrap();
        // A fault reads one page and maps the present ones around it: 447 are present, then 448.
        check_text(machine, mm, BASE, 512..959);
        let mut collapser = Collapser::default();
        assert_eq!(round(manager, &mut collapser), (1, Some(Refusal::Swapped)));
        assert!(is_large(machine, mm, BASE) && !is_large(machine, mm, BASE + HUGE));
        check_text(machine, mm, BASE, 959..960);
        assert_eq!(round(manager, &mut collapser), (1, None));
        assert!(is_large(machine, mm, BASE + HUGE));
        assert_eq!(file.resident(), 1024);
        check_text(machine, mm, BASE, 0..1024);
    });
}

/// A range that was split is collapsed again.
#[test]
fn it_repairs() {
    shmem(|machine, manager, mm, _| {
        mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
        let mut collapser = Collapser::default();
        assert_eq!(round(manager, &mut collapser), (1, None));
        // The pages stay in order: only the large leaf is missing.
        mm.madvise(VirtAddr(BASE + 8 * PAGE), PAGE, Advice::DontNeed).unwrap();
        assert!(!is_large(machine, mm, BASE));
        assert_eq!(round(manager, &mut collapser), (1, None));
        assert!(is_large(machine, mm, BASE));
        check(machine, mm, BASE, 0..512);
        store(machine, mm, BASE, 1).unwrap();
        assert_eq!(manager.stat(Stat::ThpCollapseShape), 1);
        assert_eq!(manager.stat(Stat::ThpCollapseFile), 1);
    });
}

/// A page that any address space has marked for a handler is not moved, so none of the others is moved
/// either, however often the collapser passes.
#[test]
fn it_moves_nothing_where_a_page_is_marked() {
    shmem(|machine, manager, mm, file| {
        mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
        let other = manager.new_mm().unwrap();
        other.mmap(&shared(file, BASE + HUGE, HUGE)).unwrap();
        inside(mm, &other, || check(machine, &other, BASE + HUGE, 0..512));
        let moved = || manager.stat(Stat::ThpCollapsePages);
        let mut collapser = Collapser::default();
        // The last page is mapped by another address space; and, at another address, by the scanned one.
        mm.mmap(&shared(file, BASE + 8 * HUGE, HUGE)).unwrap();
        check(machine, mm, BASE + 8 * HUGE, 511..512);
        for (marker, addr) in [(&other, BASE + HUGE), (mm, BASE + 8 * HUGE)] {
            marker.write_protect_marked(VirtAddr(addr + 511 * PAGE), PAGE).unwrap();
            for _ in 0..3 {
                assert_eq!(round(manager, &mut collapser), (0, Some(Refusal::Held)));
            }
            assert_eq!((moved(), manager.stat(Stat::ThpCollapseAlloc)), (0, 0));
            marker.remove_write_protect_marks(VirtAddr(addr), HUGE).unwrap();
        }
        assert_eq!(round(manager, &mut collapser), (1, None));
        assert_eq!(moved(), 512);
        check(machine, mm, BASE, 0..512);
        other.validate().unwrap();
        other.exit();
    });
}
