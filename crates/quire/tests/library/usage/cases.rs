//! Small cases with known results.

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use quire::vm::{Access, Advice, Backing, File, FolioPolicy, ForkStrategy, MapRequest, Sharing, Usage};

use crate::usage::naive::compare;
use crate::usage::world::{MIB, R, RW, Space, anonymous, run, small, with_forks};
use testkit::order;

const BASE: u64 = 1 << 30;
const PAGE: u64 = 4096;

fn store(mm: &Space<'_>, at: u64, len: u64) {
    (at..at + len).step_by(PAGE as usize).for_each(|at| {
        mm.fault(VirtAddr(at), Access::Write).unwrap();
    });
}

/// A file's page is counted by leaves, and the anonymous pages behind it, with as many leaves, by address spaces.
#[test]
fn a_file_s_page_in_front_of_shared_ones_does_not_hide_them() {
    with_forks(HostedConfig::new(64 * MIB), ForkStrategy::Share, |_, manager| {
        let (mm, file) = (manager.new_mm().unwrap(), manager.shmem(PAGE).unwrap());
        mm.mmap(&anonymous(BASE, PAGE * 4)).unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        mm.mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE + 2 * MIB, PAGE) })
            .unwrap();
        for _ in 0..8 {
            // The order in which lists give frames decides which of them is in front.
            store(&mm, BASE + 2 * MIB, PAGE);
            store(&mm, BASE, PAGE * 4);
            let child = mm.fork().unwrap();
            let mut counts = 0;
            manager.kpagecount(FrameRange::new(Frame(0), 64 * MIB / PAGE), |frames, count| {
                counts += frames.count * count;
            });
            assert_eq!(counts, 4 * 2 + 1, "four pages of two address spaces, and one of one");
            child.exit();
            mm.madvise(VirtAddr(BASE), PAGE * 4, Advice::DontNeed).unwrap();
        }
        mm.exit();
    });
}

/// Neighbours of different kinds are unmapped one after the other, and the table that maps both goes with the last. A table
/// without entries that stays makes each fault of a huge page there try again for ever.
#[test]
fn a_table_of_two_kinds_of_mappings_goes_with_them() {
    small(|machine, manager| {
        let (mm, file) = (manager.new_mm().unwrap(), manager.shmem(MIB).unwrap());
        let before = machine.tables(mm.root()).len();
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        mm.mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE + MIB, MIB) }).unwrap();
        store(&mm, BASE, 2 * MIB);
        mm.munmap(VirtAddr(BASE), 2 * MIB).unwrap();
        assert_eq!(machine.tables(mm.root()).len(), before);
        mm.exit();
    });
}

/// A table that three address spaces share counts each leaf once, and belongs to all of them, also after one
/// has unshared its table, and another has a page of its own.
#[test]
fn a_shared_table_belongs_to_all_its_sharers() {
    with_forks(HostedConfig::new(64 * MIB), ForkStrategy::Share, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
        store(&mm, BASE, 2 * MIB);
        let frame = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
        let count = || {
            let mut said = 0;
            manager.kpagecount(FrameRange::new(frame, 1), |_, count| said = count);
            (manager.pages().counts().mapcount(frame), said)
        };
        assert_eq!(mm.usage_of_all().uss(), 2 * MIB);
        let spaces = vec![mm.fork().unwrap(), mm.fork().unwrap(), mm];
        assert_eq!(count(), (1, 3), "one leaf, three address spaces");
        for mm in &spaces {
            let usage = mm.usage_of_all();
            assert_eq!((usage.uss(), usage.shared_dirty), (0, 2 * MIB));
            assert_eq!(usage.pss, 512 * ((PAGE << 12) / 3));
        }
        // One address space has a table of its own now, and one page.
        store(&spaces[0], BASE + PAGE, PAGE);
        assert_eq!(count(), (2, 3));
        assert_eq!(spaces[0].usage_of_all().uss(), PAGE);
        assert_eq!(spaces[1].usage_of_all().pss, 511 * ((PAGE << 12) / 3) + (PAGE << 12) / 2);
        assert!(compare(machine, manager, &spaces) == 512);
        for mm in spaces {
            mm.exit();
        }
    });
}

#[test]
fn a_large_leaf_that_another_maps_in_pieces() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(order(9)).with_pmd_mapped(true));
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
            store(mm, BASE, 4 * MIB);
            mm.mlock(VirtAddr(BASE), 2 * MIB, false).unwrap();
            let usage = mm.usage_of_all();
            assert_eq!((usage.anon_huge, usage.by_size), (4 * MIB, [0, 4 * MIB, 0]));
            assert_eq!((usage.pss_bytes(), usage.locked), (4 * MIB, (2 * MIB) << 12));
            assert_eq!((usage.pss_anon, usage.pss_dirty, usage.pss_shmem), (usage.pss, usage.pss, 0));
            assert_eq!(manager.anon_huge(), 1024);
            let child = mm.fork().unwrap();
            assert_eq!(child.usage_of_all().locked, 0);
            child.mprotect(VirtAddr(BASE), PAGE, R).unwrap();
            child.munmap(VirtAddr(BASE + 2 * MIB), MIB).unwrap();
            let usage = child.usage_of_all();
            assert_eq!((usage.anon_huge, usage.by_size), (0, [3 * MIB, 0, 0]));
            assert_eq!(manager.anon_huge(), 1024, "the parent maps both folios by large leaves");
            let usage = mm.usage_of_all();
            assert_eq!((usage.uss(), usage.pss_bytes()), (MIB, MIB + 3 * MIB / 2));
            // A part of a large leaf.
            let part = VirtRange::from_len(VirtAddr(BASE + 3 * MIB - PAGE), 2 * PAGE);
            let half = mm.usage(part);
            assert_eq!((half.rss, half.shared_dirty), (2 * PAGE, PAGE));
            let mut words = Vec::new();
            mm.pagemap(part, |addr, word| words.push((addr.0, word.frame().unwrap())));
            assert_eq!(words[1], (BASE + 3 * MIB, words[0].1.add(1)));
            child.exit();
            mm.mprotect(VirtAddr(BASE), PAGE, RW).unwrap();
            mm.madvise(VirtAddr(BASE + 2 * MIB), 2 * MIB, Advice::Free).unwrap();
            assert_eq!(mm.usage_of_all().lazy_free, 2 * MIB);
            let _ = machine;
        });
    });
}

#[test]
fn what_is_not_there_counts_nothing() {
    small(|_, manager| {
        run(manager, |mm| {
            assert_eq!(mm.usage_of_all(), Usage::default());
            mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
            mm.fault(VirtAddr(BASE), Access::Read).unwrap();
            assert_eq!(mm.usage_of_all(), Usage::default(), "the zero frame is not counted");
            let mut words = 0;
            mm.pagemap(VirtRange::new(VirtAddr(0), VirtAddr(!0xfff)), |_, word| {
                assert!(!word.has(quire::vm::PageWord::EXCLUSIVE));
                words += 1;
            });
            assert_eq!(words, 1);
            let mut rows = mm.usage_of_all().lines();
            assert_eq!(rows.next(), Some(("Rss", 0)));
        });
    });
}

/// Pages that are mapped alike are one run, however many leaves map them; a hole ends the run.
#[test]
fn leaves_side_by_side_are_shown_as_one_run() {
    small(|_, manager| {
        manager.set_folio_policy(FolioPolicy::only(order(9)).with_pmd_mapped(false));
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
            store(mm, BASE, 2 * MIB);
            let runs = || {
                let mut runs = Vec::new();
                mm.mapped(VirtRange::from_len(VirtAddr(BASE), 2 * MIB), |run| {
                    runs.push((run.addr.0, run.frames.count, run.size.frames()));
                });
                runs
            };
            assert_eq!(runs(), [(BASE, 512, 1)]);
            mm.madvise(VirtAddr(BASE + 200 * PAGE), PAGE, Advice::DontNeed).unwrap();
            assert_eq!(runs(), [(BASE, 200, 1), (BASE + 201 * PAGE, 311, 1)]);
        });
    });
}

/// A walk by `next_vma` meets the mappings that `vmas` shows, and says which file each maps.
#[test]
fn a_walk_from_mapping_to_mapping_meets_all() {
    small(|_, manager| {
        run(manager, |mm| {
            let [shmem, other] = [(); 2].map(|()| manager.shmem(4 * PAGE).unwrap());
            assert_ne!(shmem.number(), other.number());
            mm.mmap(&anonymous(BASE, 2 * PAGE)).unwrap();
            mm.mmap(&shared(BASE + 4 * PAGE, &shmem)).unwrap();
            mm.mmap(&shared(BASE + 8 * PAGE, &other)).unwrap();
            store(mm, BASE + 4 * PAGE, 2 * PAGE);
            mm.mprotect(VirtAddr(BASE), PAGE, R).unwrap();
            let (mut at, mut walked, mut shown) = (VirtAddr(0), Vec::new(), Vec::new());
            while let Some(vma) = mm.next_vma(at) {
                at = vma.range.end;
                walked.push(vma);
            }
            mm.vmas(|vma| shown.push(*vma));
            assert_eq!(walked, shown);
            let files: Vec<_> = walked.iter().map(|vma| vma.file_number).collect();
            assert_eq!(files, [0, 0, shmem.number(), other.number()]);
            assert!(walked.iter().all(|vma| vma.may.contains(RW)));
            assert_eq!(mm.next_vma(VirtAddr(BASE + 5 * PAGE)).map(|vma| vma.range), Some(walked[2].range));
            let usage = mm.usage_of_all();
            assert_eq!((usage.pss_shmem, usage.pss_anon, usage.pss_bytes()), (usage.pss, 0, 2 * PAGE));
        });
    });
}

fn shared<'a>(at: u64, file: &'a File<'_, Hosted>) -> MapRequest<'a> {
    let backing = Backing::File { file, page_offset: 0 };
    MapRequest { backing, sharing: Sharing::Shared, ..anonymous(at, 4 * PAGE) }
}
