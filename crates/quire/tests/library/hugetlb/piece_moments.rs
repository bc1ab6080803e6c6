//! Pages of 1 GiB that are mapped piece by piece, beside others, and while another task does something to the same page.

use hosted::InterruptPlan;
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::hugetlb::HugeSize::Size1G;
use quire::vm::Sharing::Shared;
use quire::vm::{Access, MapRequest, UserfaultChanges, UserfaultModes};
use testkit::held_up;

use crate::hugetlb::file_moments::{PATIENCE, with_pool};
use crate::hugetlb::parts_moments;
use crate::hugetlb::pieces::{GIB, leaf_bytes, with_machine};
use crate::hugetlb::world::{BASE, HUGE, load, of_file, private, run, store};

/// Private memory of one page of 1 GiB.
fn request() -> MapRequest<'static> {
    MapRequest { len: GIB, huge: Some(Size1G), ..private(BASE, 1) }
}

/// Memory of a page goes bad while a task takes the page from its pool, at any moment: no task ever maps it.
#[test]
fn memory_that_went_bad_is_mapped_by_no_piece() {
    let met = parts_moments::at_moments(150, |round| {
        let mut met = (0, false);
        with_pool(Size1G, 2 * GIB, 1, |machine, manager| {
            let mut head = Frame(0);
            manager.huge_pools().each_free(manager.pages(), Size1G, |frame| head = frame);
            let (at, bad) = (VirtAddr(BASE + 77 * HUGE), head.add(77 * 512 + 5));
            let mm = manager.new_mm().unwrap();
            mm.mmap(&request()).unwrap();
            let touch = || _ = mm.fault(VirtAddr(BASE), Access::Write);
            let fail = || _ = manager.memory_failure(bad).unwrap();
            met = parts_moments::held_up(machine, round, (touch, fail), |through| through);
            let _ = mm.fault(at, Access::Write);
            let leaf = machine.probe(mm.root(), at);
            let is_bad = leaf.is_some_and(|leaf| FrameRange::new(leaf.frame, leaf.frames).contains(bad));
            assert!(!is_bad, "at {round}");
            mm.exit();
        });
        met
    });
    assert!(met > 1, "memory never went bad meanwhile");
}

/// Two tasks touch one piece at once. The second waits until the first has mapped it, and does not clear it once more:
/// what either stores stays, and the next mapping of the page finds none of it.
#[test]
fn a_piece_that_another_task_is_about_to_map_is_left_to_it() {
    with_machine(1, 2, |machine, manager| {
        let piece = BASE + 5 * HUGE;
        let scene = |moment| {
            let mm = manager.new_mm().unwrap();
            mm.mmap(&request()).unwrap();
            let put = |at, word| {
                mm.switch_in();
                store(machine, &mm, at, word).unwrap();
                mm.switch_out();
            };
            let plan = InterruptPlan::Nth(moment);
            let held = held_up(machine, plan, PATIENCE, || put(piece, 7), || put(piece + 8, 9));
            mm.switch_in();
            let words = || [piece, piece + 8].map(|at| load(machine, &mm, at).unwrap());
            assert_eq!(words(), [7, 9], "at moment {moment} of {}", held.calls);
            mm.munmap(VirtAddr(BASE), GIB).unwrap();
            mm.mmap(&request()).unwrap();
            assert_eq!(words(), [0, 0], "at moment {moment} of {}", held.calls);
            mm.switch_out();
            mm.exit();
            (held.calls, held.in_time)
        };
        let (calls, _) = scene(u64::MAX);
        let waited = (0..calls).filter(|&moment| !scene(moment).1).count();
        assert!(waited > 0, "the second task never waited");
    });
}

/// A hole leaves an empty table where a piece was mapped. Another task brings the page as a whole: one leaf takes the
/// table's place, though a page of another file is in pieces, and the page's contents are its own.
#[test]
fn a_page_that_another_task_brought_takes_the_place_of_an_empty_table() {
    with_machine(2, 1, |machine, manager| {
        let [file, beside] = [(); 2].map(|()| manager.huge_file(Size1G, GIB).unwrap());
        let other = manager.new_mm().unwrap();
        other.mmap(&of_file(&file, Shared, BASE, (0, GIB / HUGE))).unwrap();
        run(manager, |mm| {
            let page = BASE + 77 * HUGE;
            mm.mmap(&of_file(&file, Shared, BASE, (0, GIB / HUGE))).unwrap();
            mm.mmap(&of_file(&beside, Shared, BASE + 8 * GIB, (0, GIB / HUGE))).unwrap();
            store(machine, mm, page, 5).unwrap();
            file.punch_hole(0..GIB).unwrap();
            other.mlock(VirtAddr(BASE), GIB, false).unwrap();
            assert_eq!([leaf_bytes(machine, &other, BASE), leaf_bytes(machine, mm, BASE)], [Some(GIB), None]);
            store(machine, mm, BASE + 8 * GIB, 6).unwrap();
            assert_eq!(leaf_bytes(machine, mm, BASE + 8 * GIB), Some(HUGE));
            assert_eq!(load(machine, mm, page), Ok(0));
            assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB));
            assert_eq!(mm.rss().huge, (GIB + HUGE) / 4096);
            store(machine, mm, page, 7).unwrap();
            let mut bytes = [0; 8];
            assert_eq!((file.read_at(page - BASE, &mut bytes), u64::from_le_bytes(bytes)), (Ok(8), 7));
        });
        other.exit();
        drop((file, beside));
    });
}

/// A handler gets whole pages. The page beside that for which it is registered stays in pieces.
#[test]
fn a_handler_completes_its_page_and_not_the_one_beside_it() {
    for watched in [0, 1] {
        with_machine(2, 1, |machine, manager| {
            let file = manager.huge_file(Size1G, 2 * GIB).unwrap();
            run(manager, |mm| {
                let pages = [BASE, BASE + GIB];
                mm.mmap(&of_file(&file, Shared, BASE, (0, 2 * GIB / HUGE))).unwrap();
                pages.into_iter().for_each(|at| store(machine, mm, at, 1).unwrap());
                let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
                let at = VirtAddr(pages[watched]);
                mm.userfault_register(&handler, at, GIB, UserfaultModes::MISSING).unwrap();
                let mut leaves = [Some(HUGE); 2];
                leaves[watched] = Some(GIB);
                assert_eq!(pages.map(|at| leaf_bytes(machine, mm, at)), leaves);
                mm.userfault_unregister(at, GIB).unwrap();
            });
            drop(file);
        });
    }
}
