//! The flags of each frame, against the page tables, the counts of the allocator, and the test's own record.

use hosted::raw::RawPages;
use std::collections::{BTreeMap, BTreeSet};

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::arch::EntryFlags;
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::manager::Config;
use quire::page_alloc::{Gfp, NodeSet};
use quire::vm::{
    Access, Advice, AnswerMode, Backing, FolioPolicy, MapRequest, PageFlags, Sharing, UserfaultChanges,
    UserfaultModes,
};

use crate::usage::world::{FORKS, MIB, Manager, Space, anonymous, with_config};
use testkit::{order, ranges_of};

const PAGE: u64 = 4096;
const BASE: u64 = 1 << 30;

/// Every frame of the machine, and its word.
fn words(machine: &Hosted, manager: &Manager<'_>) -> BTreeMap<u64, PageFlags> {
    let last = machine.ranges().last().expect("memory").end().0 / PAGE;
    let (mut words, mut next) = (BTreeMap::new(), 0);
    manager.kpageflags(FrameRange::new(Frame(0), last + 3), |frames, flags| {
        assert_eq!(frames.start.0, next, "a gap in the answer");
        next = frames.end().0;
        (frames.start.0..next).for_each(|frame| _ = words.insert(frame, flags));
    });
    assert_eq!(next, last + 3);
    for frame in last..last + 3 {
        assert_eq!(words.remove(&frame), Some(PageFlags(PageFlags::NOPAGE)));
    }
    words
}

fn frames_with(words: &BTreeMap<u64, PageFlags>, bit: u64) -> BTreeSet<u64> {
    words.iter().filter(|(_, flags)| flags.has(bit)).map(|(&frame, _)| frame).collect()
}

/// Compares everything that can be learned in another way.
pub(crate) fn compare_flags(machine: &Hosted, manager: &Manager<'_>, spaces: &[Space<'_>], by_frame: bool) {
    let words = words(machine, manager);
    let (mut mapped, mut anon, mut zero) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for leaf in spaces.iter().flat_map(|mm| machine.leaves(mm.root())) {
        let frames = leaf.frame.0..leaf.frame.0 + leaf.frames;
        let has = |flag: EntryFlags| leaf.entry & flag.bits() == flag.bits();
        if has(EntryFlags::SPECIAL) {
            zero.extend(frames);
            continue;
        }
        if has(EntryFlags::ANON) {
            anon.extend(frames.clone());
        }
        mapped.extend(frames);
    }
    let with = |bit| frames_with(&words, bit);
    if by_frame {
        assert_eq!(with(PageFlags::MMAP), mapped);
    } else {
        assert!(with(PageFlags::MMAP).is_superset(&mapped));
    }
    // Other frames of a folio with a mapped frame belong to anonymous memory as well.
    let more = &with(PageFlags::ANON) - &anon;
    assert!(anon.is_subset(&with(PageFlags::ANON)) && more.is_disjoint(&mapped));
    assert!(more.iter().all(|frame| words[frame].has(PageFlags::THP) || words[frame].has(PageFlags::HUGE)));
    assert!(with(PageFlags::ZERO_PAGE).is_superset(&zero) && with(PageFlags::ZERO_PAGE).len() == 1);
    let tables: BTreeSet<u64> =
        spaces.iter().flat_map(|mm| machine.tables(mm.root())).map(|frame| frame.0).collect();
    assert_eq!(with(PageFlags::PGTABLE), tables);
    let info = manager.meminfo().frames;
    assert_eq!(with(PageFlags::BUDDY).len() as u64, info.free + info.cached);
    let huge = manager.huge_pools().info(manager.pages(), HugeSize::Size2M).total * 512;
    assert_eq!(with(PageFlags::HUGE).len() as u64, huge);
    assert!(with(PageFlags::SLAB).is_disjoint(&(&mapped | &tables)) && !with(PageFlags::SLAB).is_empty());
    let (heads, tails) = (with(PageFlags::COMPOUND_HEAD), with(PageFlags::COMPOUND_TAIL));
    assert!(heads.is_disjoint(&tails));
    assert!(tails.iter().all(|frame| heads.contains(&(frame - 1)) || tails.contains(&(frame - 1))));
    assert!(heads.iter().all(|frame| tails.contains(&(frame + 1))));
    let compound = &heads | &tails;
    assert!(with(PageFlags::THP).is_subset(&compound) && with(PageFlags::HUGE).is_subset(&compound));
    assert!(with(PageFlags::THP).is_disjoint(&with(PageFlags::HUGE)));
}

fn word(manager: &Manager<'_>, frame: Frame) -> PageFlags {
    let mut said = PageFlags::default();
    manager.kpageflags(FrameRange::new(frame, 1), |_, flags| said = flags);
    said
}

/// Linux's flag numbers, for everything that can be made here.
#[test]
fn each_use_has_its_bit() {
    let config = Config { folios: FolioPolicy::only(order(9)).with_pmd_mapped(true), ..Config::default() };
    with_config(HostedConfig::new(96 * MIB), config, |machine, manager| {
        assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 2).after, 2);
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
        mm.mmap(&MapRequest { huge: Some(HugeSize::Size2M), ..anonymous(BASE + 8 * MIB, 2 * MIB) }).unwrap();
        let frame = |addr: u64, access| {
            mm.fault(VirtAddr(addr), access).unwrap();
            machine.probe(mm.root(), VirtAddr(addr)).unwrap().frame
        };
        let thp = frame(BASE, Access::Write);
        assert_eq!(word(manager, thp).0, 1 << 11 | 1 << 12 | 1 << 15 | 1 << 22);
        assert_eq!(word(manager, thp.add(511)).0, 1 << 11 | 1 << 12 | 1 << 16 | 1 << 22);
        mm.madvise(VirtAddr(BASE + PAGE), PAGE, Advice::DontNeed).unwrap();
        assert_eq!(word(manager, thp.add(1)).0, 1 << 12 | 1 << 16 | 1 << 22, "in a folio that others map");
        let huge = frame(BASE + 8 * MIB, Access::Write);
        assert_eq!(word(manager, huge).0, 1 << 11 | 1 << 12 | 1 << 15 | 1 << 17);
        mm.munmap(VirtAddr(BASE + 8 * MIB), 2 * MIB).unwrap();
        assert_eq!(word(manager, huge).0, 1 << 15 | 1 << 17, "in its pool");
        assert_eq!(word(manager, mm.root()).0, 1 << 26);
        let shmem = manager.shmem(MIB).unwrap();
        let backing = quire::vm::Backing::File { file: &shmem, page_offset: 0 };
        let sharing = quire::vm::Sharing::Shared;
        mm.mmap(&MapRequest { backing, sharing, ..anonymous(BASE + 16 * MIB, MIB) }).unwrap();
        let cached = frame(BASE + 16 * MIB, Access::Write);
        assert_eq!(word(manager, cached).0, 1 << 11);
        mm.munmap(VirtAddr(BASE + 16 * MIB), MIB).unwrap();
        assert_eq!(word(manager, cached).0, 1 << 2, "page cache that was accessed, without a mapping");
        compare_flags(machine, manager, std::slice::from_ref(&mm), true);
        mm.exit();
        assert_eq!(word(manager, thp).0, 1 << 10);
        drop(shmem);
        assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after, 0);
    });
}

/// A bad frame is flagged, in use or not; its neighbours keep their flags.
#[test]
fn bad_frames_say_so() {
    let machine = HostedConfig::new(64 * MIB).build().unwrap();
    let machine = &machine;
    machine.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(machine, &ranges_of(machine), &Config::default()).unwrap();
        let manager = &manager;
        manager.set_folio_policy(FolioPolicy::only(order(2)));
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, 64 * PAGE)).unwrap();
        mm.madvise(VirtAddr(BASE), 64 * PAGE, Advice::PopulateWrite).unwrap();
        let bad = machine.probe(mm.root(), VirtAddr(BASE + 5 * PAGE)).unwrap().frame;
        manager.memory_failure(bad).unwrap();
        assert_eq!(word(manager, bad).0, 1 << 19);
        for beside in [-1, 1] {
            let beside = Frame(bad.0.wrapping_add_signed(beside));
            assert_eq!(word(manager, beside).0, 1 << 11 | 1 << 12, "its folio came apart");
        }
        compare_flags(machine, manager, std::slice::from_ref(&mm), true);
        let own = manager.pages().alloc_raw(Gfp::KERNEL, order(0)).unwrap();
        assert_eq!(word(manager, own).0, 0);
        manager.pages().free_raw(own, order(0)).unwrap();
        assert_eq!(word(manager, own).0, 1 << 10);
        mm.exit();
        assert_eq!(word(manager, bad).0, 1 << 19, "lost for good");
        manager.validate().unwrap();
        machine.assert_clean();
    });
}

/// Anonymous memory that is pinned, or moves, is not counted as a file's: its flags do not change.
#[test]
fn held_anonymous_memory_is_told_from_pages_of_files() {
    for (fork, number, pmd) in
        FORKS.into_iter().flat_map(|fork| [(fork, 0, false), (fork, 4, false), (fork, 9, true)])
    {
        let folios = FolioPolicy::only(order(number)).with_pmd_mapped(pmd);
        let config = Config { fork, folios, ..Config::default() };
        with_config(HostedConfig::new(64 * MIB), config, |machine, manager| {
            let mm = manager.new_mm().unwrap();
            let file = manager.shmem(MIB).unwrap();
            mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
            let backing = Backing::File { file: &file, page_offset: 0 };
            mm.mmap(&MapRequest { backing, sharing: Sharing::Shared, ..anonymous(BASE + 4 * MIB, MIB) })
                .unwrap();
            let touched = |at: u64| {
                mm.fault(VirtAddr(at), Access::Write).unwrap();
                machine.probe(mm.root(), VirtAddr(at)).unwrap().frame
            };
            let ours = touched(BASE);
            // Frames that are free from here on were anonymous memory, and their descriptors say so.
            let filled = BASE + 64 * MIB;
            mm.mmap(&anonymous(filled, 64 * MIB)).unwrap();
            mm.madvise(VirtAddr(filled), 64 * MIB, Advice::NoHugePage).unwrap();
            mm.madvise(VirtAddr(filled), 64 * MIB, Advice::PopulateWrite).unwrap_err();
            for page in (0..64 * MIB / PAGE).step_by(2) {
                mm.madvise(VirtAddr(filled + page * PAGE), PAGE, Advice::DontNeed).unwrap();
            }
            let cached = touched(BASE + 4 * MIB);
            // A page that a handler brings belongs to the file as well.
            let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
            mm.userfault_register(&handler, VirtAddr(BASE + 4 * MIB), MIB, UserfaultModes::MISSING).unwrap();
            let copied =
                mm.userfault_copy(VirtAddr(BASE + 5 * MIB - PAGE), PAGE, AnswerMode::WAKE, |_, _| ());
            assert_eq!(copied.all(), Ok(PAGE));
            drop(handler);
            let brought = touched(BASE + 5 * MIB - PAGE);
            let child = mm.fork().unwrap();
            child.fault(VirtAddr(BASE + 4 * MIB), Access::Read).unwrap();
            let said = |frame: Frame| {
                let mut count = 0;
                manager.kpagecount(FrameRange::new(frame, 1), |_, leaves| count = leaves);
                (word(manager, frame), count, manager.folio_spaces(frame))
            };
            let before = said(ours);
            assert!(before.0.has(PageFlags::ANON) && (before.1, before.2) == (2, Some(2)), "{before:?}");
            let folio = FrameRange::folio(ours, order(number));
            assert_eq!(manager.pages().frames().set_aside(ours), Some(order(number)));
            assert_eq!(said(ours), before, "{fork:?}, {number}");
            child.munmap(VirtAddr(BASE), 2 * MIB).unwrap();
            assert_eq!((said(ours).1, said(ours).2), (1, Some(1)));
            assert_eq!(said(cached), (PageFlags(PageFlags::MMAP), 2, Some(2)));
            assert_eq!(said(brought), (PageFlags(PageFlags::MMAP), 1, Some(1)));
            // In another frame it still belongs to the file.
            assert_eq!(manager.migrate(cached), Ok(1));
            mm.fault(VirtAddr(BASE + 4 * MIB), Access::Read).unwrap();
            let moved = machine.probe(mm.root(), VirtAddr(BASE + 4 * MIB)).unwrap().frame;
            assert_eq!(said(moved), (PageFlags(PageFlags::MMAP), 1, Some(1)));
            [child, mm].into_iter().for_each(Space::exit);
            assert!(!word(manager, ours).has(PageFlags::ANON), "mapped nowhere");
            assert_eq!(manager.pages().release_raw(folio), folio.count);
        });
    }
}
