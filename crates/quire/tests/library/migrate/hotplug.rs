//! A whole manager gets memory after start-up, uses it and gives it up.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{FrameRange, VirtAddr};
use quire::cpu::CpuId;
use quire::error::HotplugError;
use quire::manager::{Config, MemoryRange};
use quire::stats::Stat;
use quire::vm::Advice;
use testkit::ranges_of;

use crate::migrate::support::{PAGE, find_frame, frame_at};
use crate::migrate::world::{MIB, Manager, Space, anonymous, load, run, store};

const BASE: u64 = 0x1_0000_0000;

/// A manager of 96 MiB, to which 32 MiB can be added.
fn with_later(test: impl FnOnce(&Hosted, &Manager<'_>, FrameRange)) {
    let machine = HostedConfig::new(128 * MIB).build().unwrap();
    let all = ranges_of(&machine)[0];
    let here = FrameRange::new(all.frames.start, 96 * MIB / PAGE);
    let late = FrameRange::new(here.end(), 32 * MIB / PAGE);
    let range = |frames| MemoryRange { frames, ..all };
    machine.run_on(CpuId(0), || {
        let config = Config::default();
        let manager =
            hosted::raw::memory_manager_with_later(&machine, &[range(here)], &[range(late)], &config)
                .unwrap();
        test(&machine, &manager, late);
        manager.validate().unwrap();
        machine.assert_clean();
    });
}

/// How many of the pages are in the frames.
fn pages_in(machine: &Hosted, mm: &Space<'_>, bytes: u64, frames: FrameRange) -> u64 {
    let is_in =
        |page: &u64| find_frame(machine, mm, BASE + page * PAGE).is_some_and(|at| frames.contains(at));
    (0..bytes / PAGE).filter(is_in).count() as u64
}

#[test]
fn memory_is_added_filled_and_removed() {
    with_later(|machine, manager, late| {
        let bytes = 104 * MIB;
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, bytes)).unwrap();
            // Page tables are allocated first: they cannot be moved.
            for table in 0..bytes / (2 * MIB) {
                load(machine, mm, BASE + table * 2 * MIB).unwrap();
            }
            assert_eq!(manager.remove_memory(late), Err(HotplugError::Absent));
            let total = manager.pages().memory_info().total;
            for round in 1..=2u64 {
                manager.pages().add_memory_raw(late, round == 1).unwrap();
                assert_eq!(manager.pages().memory_info().total, total + late.count);
                for page in 0..bytes / PAGE {
                    store(machine, mm, BASE + page * PAGE, page * round).unwrap();
                }
                assert!(pages_in(machine, mm, bytes, late) > late.count / 4, "it is used, round {round}");
                assert_eq!(manager.remove_memory(late), Err(HotplugError::InUse), "there is no other room");
                // Half of all goes, and leaves room for what is in the rest of the added memory.
                for gone in ((round - 1) * 2 * MIB..bytes).step_by(4 << 20) {
                    mm.madvise(VirtAddr(BASE + gone), 2 * MIB, Advice::DontNeed).unwrap();
                }
                let moves = pages_in(machine, mm, bytes, late);
                assert!(moves > 0, "round {round}");
                let moved = manager.stat(Stat::PgmigrateSuccess);
                manager.remove_memory(late).unwrap();
                assert!(manager.stat(Stat::PgmigrateSuccess) >= moved + moves);
                assert_eq!(manager.pages().memory_info().total, total);
                for page in (0..bytes / PAGE).filter(|page| page / 512 % 2 == round % 2) {
                    assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page * round), "page {page}");
                    assert!(!late.contains(frame_at(machine, mm, BASE + page * PAGE)));
                }
                manager.validate().unwrap();
            }
        });
    });
}
