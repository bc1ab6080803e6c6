//! The usage of all address spaces, page by page, as the software MMU reads their page tables; compared with
//! the library's answers.

use std::collections::BTreeMap;

use hosted::{Hosted, Translation};
use quire::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use quire::arch::EntryFlags;
use quire::filemap::FileKind;
use quire::vm::vma::VmaFlags;
use quire::vm::{PageWord, Usage, VmaInfo};

use crate::usage::world::{Manager, Space};

const PAGE: u64 = 4096;
const USER: VirtRange = VirtRange { start: VirtAddr(0), end: VirtAddr(1 << 47) };

/// How many pages, of all address spaces, are in each frame.
pub(crate) type Counts = BTreeMap<u64, u64>;

pub(crate) fn has(leaf: &Translation, flags: EntryFlags) -> bool {
    leaf.entry & flags.bits() == flags.bits()
}

/// Every page of an address space: its address, its frame, its leaf.
pub(crate) fn pages(machine: &Hosted, mm: &Space<'_>) -> Vec<(u64, u64, Translation)> {
    let each = |leaf: Translation| {
        (0..leaf.frames).map(move |at| (leaf.addr.0 + at * PAGE, leaf.frame.0 + at, leaf))
    };
    machine.leaves(mm.root()).into_iter().flat_map(each).collect()
}

pub(crate) fn count(machine: &Hosted, spaces: &[Space<'_>]) -> Counts {
    let mut counts = Counts::new();
    for (_, frame, leaf) in spaces.iter().flat_map(|mm| pages(machine, mm)) {
        if !has(&leaf, EntryFlags::SPECIAL) {
            *counts.entry(frame).or_default() += 1;
        }
    }
    counts
}

fn word(frame: u64, leaf: &Translation, spaces: u64) -> u64 {
    let zero = has(leaf, EntryFlags::SPECIAL);
    let mut word = frame | PageWord::PRESENT;
    word |= if has(leaf, EntryFlags::SOFT_DIRTY) { 1 << 55 } else { 0 };
    word |= if !zero && spaces == 1 { 1 << 56 } else { 0 };
    word |= if has(leaf, EntryFlags::UFFD_WP) { 1 << 57 } else { 0 };
    word | if !zero && !has(leaf, EntryFlags::ANON) { 1 << 61 } else { 0 }
}

fn add(usage: &mut Usage, vma: &VmaInfo, leaf: &Translation, spaces: u64) {
    if has(leaf, EntryFlags::SPECIAL) {
        return;
    }
    let share = (PAGE << 12) / spaces;
    let size = match leaf.frames {
        1 => 0,
        512 => 1,
        _ => 2,
    };
    if matches!(vma.file, Some((FileKind::Huge { .. }, _))) {
        *(if spaces > 1 { &mut usage.shared_hugetlb } else { &mut usage.private_hugetlb }) += PAGE;
        usage.hugetlb_pss += share;
        usage.hugetlb_by_size[size] += PAGE;
        return;
    }
    usage.rss += PAGE;
    usage.pss += share;
    usage.pss_dirty += if leaf.dirty { share } else { 0 };
    match vma.file {
        _ if has(leaf, EntryFlags::ANON) => usage.pss_anon += share,
        Some((FileKind::Shmem { .. }, _)) => usage.pss_shmem += share,
        _ => {}
    }
    usage.by_size[size] += PAGE;
    let row = match (spaces > 1, leaf.dirty) {
        (true, true) => &mut usage.shared_dirty,
        (true, false) => &mut usage.shared_clean,
        (false, true) => &mut usage.private_dirty,
        (false, false) => &mut usage.private_clean,
    };
    *row += PAGE;
    let anon = has(leaf, EntryFlags::ANON);
    let flag = |applies: bool| if applies { PAGE } else { 0 };
    usage.referenced += flag(leaf.accessed);
    usage.anonymous += flag(anon);
    usage.lazy_free += flag(has(leaf, EntryFlags::LAZY_FREE) && !leaf.dirty);
    let (is_large, is_shmem) = (leaf.frames > 1, matches!(vma.file, Some((FileKind::Shmem { .. }, _))));
    usage.anon_huge += flag(is_large && anon);
    usage.shmem_large += flag(is_large && !anon && is_shmem);
    usage.file_large += flag(is_large && !anon && !is_shmem);
    usage.locked += if vma.flags.contains(VmaFlags::LOCKED) { share } else { 0 };
}

/// Compares all answers of the library with the page tables. Returns how many pages are shared.
pub(crate) fn compare(machine: &Hosted, manager: &Manager<'_>, spaces: &[Space<'_>]) -> usize {
    let counts = count(machine, spaces);
    let last = machine.ranges().last().expect("memory").end().0 / PAGE;
    let (mut said, mut next) = (Counts::new(), 0);
    manager.kpagecount(FrameRange::new(Frame(0), last), |frames, count| {
        assert_eq!(frames.start.0, next, "a gap in the answer");
        next = frames.end().0;
        if count > 0 {
            (frames.start.0..next).for_each(|frame| _ = said.insert(frame, count));
        }
    });
    assert_eq!(next, last);
    assert_eq!(said, counts, "kpagecount");
    for (number, mm) in spaces.iter().enumerate() {
        let pages = pages(machine, mm);
        let spaces_of = |frame: u64| counts.get(&frame).copied().unwrap_or(1);
        let mut words = Vec::new();
        mm.pagemap(USER, |addr, word| words.push((addr.0, word.0)));
        let expected: Vec<_> =
            pages.iter().map(|(addr, frame, leaf)| (*addr, word(*frame, leaf, spaces_of(*frame)))).collect();
        assert_eq!(words, expected, "pagemap of {number}");
        let (mut mappings, mut sum) = (Vec::new(), Usage::default());
        mm.vmas(|vma| mappings.push((*vma, Usage::default())));
        for (addr, frame, leaf) in &pages {
            let at = mappings.partition_point(|(vma, _)| vma.range.end.0 <= *addr);
            let (vma, usage) = &mut mappings[at];
            let vma = *vma;
            // Not summed from the mappings: then an amount that the library forgets would be missing here
            // too.
            [usage, &mut sum].into_iter().for_each(|usage| add(usage, &vma, leaf, spaces_of(*frame)));
        }
        let mut shown = Vec::new();
        mm.smaps(USER, |vma, usage| shown.push((*vma, *usage)));
        assert_eq!(shown, mappings, "smaps of {number}");
        assert_eq!(mm.usage_of_all(), sum);
        assert_eq!(sum.rss, sum.by_size.iter().sum::<u64>());
        assert_eq!(sum.rss, (mm.rss().anon + mm.rss().file + mm.rss().shmem) * PAGE);
    }
    counts.values().filter(|&&count| count > 1).count()
}
