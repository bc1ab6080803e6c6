//! What is shown of an address space while one of its leaves is replaced.

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Order, VirtAddr, VirtRange};
use quire::manager::MemoryManager;
use quire::vm::{Access, Advice, FolioPolicy};

use crate::vm::world::{MIB, Space, anonymous, store, with_manager};
use testkit::{PATIENCE, held_up};

const BASE: u64 = 0x4000_0000;
const PAGE: u64 = 4096;
const LEN: u64 = 2 * MIB;
/// The page that goes.
const GONE: u64 = 9;

/// An address space with memory to whose first page was stored.
fn stored<'m>(machine: &Hosted, manager: &'m MemoryManager<'_, Hosted>) -> Space<'m> {
    let mm = manager.new_mm().unwrap();
    mm.mmap(&anonymous(BASE, LEN)).unwrap();
    mm.switch_in();
    store(machine, &mm, BASE, 1).unwrap();
    mm.switch_out();
    mm
}

/// Which pages are in memory: by `mincore`, by `pagemap`, and how many by `smaps`.
fn seen(mm: &Space<'_>) -> (Vec<bool>, Vec<bool>, u64) {
    let (mut core, mut map) = (vec![false; 512], vec![false; 512]);
    mm.mincore(VirtAddr(BASE), &mut core).expect("mapped");
    let range = VirtRange::from_len(VirtAddr(BASE), LEN);
    mm.pagemap(range, |addr, _| map[((addr.0 - BASE) / PAGE) as usize] = true);
    (core, map, mm.usage(range).rss)
}

#[test]
fn pages_beside_one_that_goes_are_in_memory() {
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
        let (mut round, mut calls) = (0, 0);
        while round <= calls {
            let mm = stored(machine, manager);
            let gone = VirtAddr(BASE + GONE * PAGE);
            let drop_page = || mm.madvise(gone, PAGE, Advice::DontNeed).unwrap();
            let held = held_up(machine, InterruptPlan::Nth(round), PATIENCE, drop_page, || seen(&mm));
            let (core, map, rss) = held.second;
            for page in (0..512).filter(|&page| page != GONE as usize) {
                assert!(core[page] && map[page], "page {page} at call {round}");
            }
            assert!(rss >= 511 * PAGE, "{rss} bytes at call {round}");
            mm.exit();
            (round, calls) = (round + 1, held.calls);
        }
        assert!(round > 5, "{round} moments");
    });
}

#[test]
fn a_page_that_is_copied_is_in_memory() {
    let look = |machine: &Hosted, mm: &Space<'_>, round| {
        let copy = || mm.fault(VirtAddr(BASE), Access::Write).unwrap();
        let held = held_up(machine, InterruptPlan::Nth(round), PATIENCE, copy, || seen(mm));
        let (core, map, rss) = held.second;
        assert!(core[0] && map[0] && rss == PAGE, "call {round}");
        held.calls
    };
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let (mut round, mut calls) = (0, 0);
        while round <= calls {
            let mm = stored(machine, manager);
            let child = mm.fork().unwrap();
            calls = look(machine, &mm, round);
            mm.exit();
            child.exit();
            round += 1;
        }
        assert!(round > 5, "{round} moments");
    });
}
