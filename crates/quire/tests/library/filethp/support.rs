//! Helpers of the tests of large leaves onto pages of files.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, SyntheticFiles};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::arch::Protection;
use quire::page_alloc::Gfp;
use quire::platform::FileId;
use quire::vm::{Backing, Collapsed, File, FolioPolicy, MapRequest, Placement, Refusal, Sharing};

use crate::filethp::world::{MIB, Manager, Space, load, run, store, with_manager};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const HUGE: u64 = 2 * MIB;
pub(crate) const BASE: u64 = 0x4000_0000;
/// A file with a backing store.
pub(crate) const TEXT: FileId = FileId(7);
pub(crate) const RX: Protection = Protection::READ.union(Protection::EXEC);

/// A machine of 64 MiB on which only a collapse makes large folios.
pub(crate) fn frames(test: impl FnOnce(&Hosted, &Manager<'_>)) {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        displaced(manager, || test(machine, manager));
    });
}

/// Pages that are read in order would fill a block in order. Here one frame is in their way.
pub(crate) fn displaced(manager: &Manager<'_>, test: impl FnOnce()) {
    let odd = manager.pages().alloc_raw(Gfp::USER, Order::FRAME).expect("memory");
    test();
    manager.pages().free_raw(odd, Order::FRAME).expect("it is the test's");
}

/// The same with an address space that maps 4 MiB of shared anonymous memory at [`BASE`], the first 2 MiB of
/// it filled.
pub(crate) fn shmem(test: impl FnOnce(&Hosted, &Manager<'_>, &Space<'_>, &File<'_, Hosted>)) {
    frames(|machine, manager| {
        let file = manager.shmem(2 * HUGE).expect("memory");
        run(manager, |mm| {
            mm.mmap(&shared(&file, BASE, 2 * HUGE)).unwrap();
            fill(machine, mm, BASE, 0..512);
            test(machine, manager, mm, &file);
        });
    });
}

/// The same with 4 MiB of a file's text, mapped privately for reading and executing, and read.
pub(crate) fn text(test: impl FnOnce(&Hosted, &Manager<'_>, &Space<'_>, &File<'_, Hosted>)) {
    frames(|machine, manager| {
        machine.files().set_size(TEXT, 2 * HUGE);
        let file = manager.open(TEXT).expect("memory");
        run(manager, |mm| {
            mm.mmap(&private(&file, BASE, 2 * HUGE, RX)).unwrap();
            check_text(machine, mm, BASE, 0..512);
            test(machine, manager, mm, &file);
        });
    });
}

/// A writable shared mapping of a file, at a fixed address.
pub(crate) fn shared<'a>(file: &'a File<'_, Hosted>, addr: u64, len: u64) -> MapRequest<'a> {
    MapRequest {
        addr: VirtAddr(addr),
        len,
        prot: crate::filethp::world::RW,
        placement: Placement::Fixed,
        sharing: Sharing::Shared,
        backing: Backing::File { file, page_offset: 0 },
        ..MapRequest::default()
    }
}

/// A private one.
pub(crate) fn private<'a>(
    file: &'a File<'_, Hosted>,
    addr: u64,
    len: u64,
    prot: Protection,
) -> MapRequest<'a> {
    MapRequest { sharing: Sharing::Private, prot, ..shared(file, addr, len) }
}

/// The word that a page of shared anonymous memory holds in every test.
pub(crate) fn word(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

pub(crate) fn fill(machine: &Hosted, mm: &Space<'_>, base: u64, pages: impl Iterator<Item = u64>) {
    pages.for_each(|page| store(machine, mm, base + page * PAGE, word(page)).expect("memory"));
}

/// Checks that these pages, mapped from `base` on, hold what [`fill`] stored.
pub(crate) fn check(machine: &Hosted, mm: &Space<'_>, base: u64, pages: impl Iterator<Item = u64>) {
    pages.for_each(|page| assert_eq!(load(machine, mm, base + page * PAGE), Ok(word(page)), "page {page}"));
}

/// Checks that these pages of [`TEXT`], mapped from `base` on, hold the file's bytes.
pub(crate) fn check_text(machine: &Hosted, mm: &Space<'_>, base: u64, pages: impl Iterator<Item = u64>) {
    for page in pages {
        let bytes: [u8; 8] =
            core::array::from_fn(|at| SyntheticFiles::pristine_byte(TEXT, page * PAGE + at as u64));
        let seen = load(machine, mm, base + page * PAGE).expect("a page of the file");
        assert_eq!(seen.to_le_bytes(), bytes, "page {page}");
    }
}

pub(crate) fn is_large(machine: &Hosted, mm: &Space<'_>, addr: u64) -> bool {
    machine.probe(mm.root(), VirtAddr(addr)).is_some_and(|leaf| leaf.frames == 512)
}

pub(crate) fn frame_at(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Option<Frame> {
    machine.probe(mm.root(), VirtAddr(addr)).map(|leaf| leaf.frame)
}

/// Collapses the first 2 MiB at `base`, whose pages must move.
pub(crate) fn moved(mm: &Space<'_>, base: u64) {
    let report = mm.collapse(VirtAddr(base), HUGE).expect("a mapping");
    assert_eq!((report.copied, report.all_refused()), (1, 0), "{report:?}");
}

pub(crate) fn refused(mm: &Space<'_>, base: u64, why: Refusal) {
    let report: Collapsed = mm.collapse(VirtAddr(base), HUGE).expect("a mapping");
    assert_eq!((report.all_refused(), report.last), (1, Some(why)));
}

/// Checks that each of the 512 frames from `first` on is mapped as often as `spaces` says, by the map counts
/// and by the page tables.
pub(crate) fn counts(manager: &Manager<'_>, first: Frame, spaces: impl Fn(u64) -> u64) {
    let mut shown = 0;
    manager.kpagecount(FrameRange::new(first, 512), |frames, count| {
        for frame in frames.start.0..frames.end().0 {
            let at = frame - first.0;
            assert_eq!(count, spaces(at), "page {at}");
            assert_eq!(manager.pages().counts().mapcount(Frame(frame)), count);
            shown += 1;
        }
    });
    assert_eq!(shown, 512);
}

/// Runs something in another address space, and returns to this one.
pub(crate) fn inside(mm: &Space<'_>, other: &Space<'_>, work: impl FnOnce()) {
    mm.switch_out();
    other.switch_in();
    work();
    other.switch_out();
    mm.switch_in();
}
