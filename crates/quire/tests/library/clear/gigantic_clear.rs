//! Folios of 1 GiB that are cleared on demand: which part of a piece comes last, and tasks that die while
//! they clear one.

use hosted::HostedConfig;
use quire::addr::{Order, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{AllocatorConfig, Zeroes};
use quire::vm::{Access, FolioPolicy, MapRequest, Mm, Placement};

use crate::watched::{Event, Watched};
use testkit::ranges_of;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const BASE: u64 = 64 * GIB;

type Manager<'p, 'm> = MemoryManager<'p, Watched<'m>>;

/// Runs `test` in an address space with a GiB of fresh memory, on a machine that records what it does and has
/// memory for one folio of that size.
fn with_gigabyte(test: impl FnOnce(&Watched<'_>, &Manager<'_, '_>, &Mm<'_, Watched<'_>>)) {
    let config = HostedConfig { clearing: false, ..HostedConfig::new(2 * GIB + 256 * MIB) };
    let machine = config.build().unwrap();
    let watched = Watched::new(&machine);
    machine.run_on(CpuId(0), || {
        let zeroes = Zeroes { remember: false, ..Zeroes::default() };
        let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        let config = Config { folios: FolioPolicy::only(Order::GIGANTIC), allocator, ..Config::default() };
        let manager = hosted::raw::memory_manager(&watched, &ranges_of(&machine), &config).unwrap();
        let mm = manager.new_mm().unwrap();
        let prot = Protection::READ | Protection::WRITE;
        let (addr, placement) = (VirtAddr(BASE), Placement::Fixed);
        mm.mmap(&MapRequest { addr, len: GIB, prot, placement, ..MapRequest::default() }).unwrap();
        watched.events();
        test(&watched, &manager, &mm);
        mm.validate().unwrap();
        mm.exit();
        manager.validate().unwrap();
        assert_eq!(manager.pages().split_deferred(u64::MAX), 0, "nothing is left of it");
    });
}

/// The piece is cleared in stretches, the neighbourhood of the access last.
#[test]
fn what_is_touched_of_a_piece_comes_last() {
    with_gigabyte(|watched, _, mm| {
        for touched in [700 * MIB + 4096, 4 * MIB, GIB - 1] {
            mm.fault(VirtAddr(BASE + touched), Access::Write).unwrap();
            let events = watched.events();
            let clears = events.iter().filter_map(|event| match event {
                Event::Clear(frames, _) => Some(*frames),
                _ => None,
            });
            let clears = Vec::from_iter(clears);
            assert_eq!(clears.iter().map(|frames| frames.count).sum::<u64>(), 512);
            let first = clears.iter().map(|frames| frames.start).min().expect("it is cleared");
            let last = clears.last().expect("it is cleared");
            assert!(last.count <= 16 && last.contains(first.add(touched % (2 * MIB) / 4096)), "{clears:?}");
            assert!(events.iter().filter(|&event| *event == Event::Point).count() >= 3, "{events:?}");
        }
    });
}

/// A task that is being killed finishes only its present stretch of the piece; then any other task may take
/// the piece.
#[test]
fn a_task_that_dies_gives_its_piece_back() {
    with_gigabyte(|watched, manager, mm| {
        let dying = Err(FaultError::Dying);
        for lives in 0..3 {
            watched.dies_after(Some(lives));
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Write).map(|_| ()), dying);
            watched.dies_after(Some(lives));
            assert!(!manager.clear_ahead());
            assert_eq!(mm.rss().anon, 0);
        }
        // Populating dies in a piece, and between two.
        let mut populated = 0;
        for lives in 0..12 {
            watched.dies_after(Some(lives));
            assert!(mm.mlock(VirtAddr(BASE), GIB, false).is_err());
            populated = mm.rss().anon / 512;
        }
        assert!((2..40).contains(&populated), "{populated}");
        watched.dies_after(None);
        mm.fault(VirtAddr(BASE + GIB - 1), Access::Write).unwrap();
        assert_eq!(
            std::iter::from_fn(|| manager.clear_ahead().then_some(())).count() as u64,
            511 - populated
        );
        assert_eq!(mm.rss().anon, GIB / 4096);
    });
}

/// A task that dies maps nothing for its claim. Once the mapping is gone too, the folio is freed with the last
/// claim.
#[test]
fn a_folio_whose_only_task_died_is_freed_with_its_mapping() {
    with_gigabyte(|watched, manager, mm| {
        let free = manager.meminfo().frames.free;
        watched.dies_after(Some(1));
        assert_eq!(mm.fault(VirtAddr(BASE), Access::Write).map(|_| ()), Err(FaultError::Dying));
        watched.dies_after(None);
        mm.munmap(VirtAddr(BASE), GIB).unwrap();
        assert!(!manager.clear_ahead());
        manager.pages().lists().drain_local();
        assert!(manager.meminfo().frames.free + 16 >= free);
    });
}
