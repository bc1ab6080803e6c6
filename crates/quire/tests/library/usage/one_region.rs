//! Many address spaces over one region, whose page tables they share: what tables, resident sets and flushes
//! cost by their number (invariant 5, decision 19).
//!
//! Shared regions of page tables are proposed for Linux too ("mshare", 2022 to 2026), for processes that name
//! the region: there a store is seen by all, a change of rights by one is a change for all, and the tables
//! stay shared. Here `fork` shares the tables of private memory until an address space changes something in
//! them; then that one has a table of its own for those 2 MiB, and the others share on. Pages of files share
//! no tables. What one region costs is the same in both: its tables once, however many use it, and what each
//! maps exactly.

use hosted::{Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::stats::Stat;
use quire::vm::{Access, Advice, ForkStrategy};

use crate::usage::world::{MIB, Manager, Space, anonymous, with_forks};

const BASE: u64 = 1 << 30;
const PAGE: u64 = 4096;
const BYTES: u64 = 16 * MIB;
const PAGES: u64 = BYTES / PAGE;
/// Tables of leaves for the region.
const TABLES: u64 = BYTES / (2 * MIB);
/// The upper tables of an address space that maps nothing else.
const UPPER: u64 = 3;

fn all_tables(manager: &Manager<'_>) -> u64 {
    manager.stat(Stat::NrPageTablePages)
}

/// What each of these address spaces maps, where `changed` of them have `own` pages of their own.
fn check_usage(spaces: &[Space<'_>], changed: usize, own: u64) {
    for (number, mm) in spaces.iter().enumerate() {
        let usage = mm.usage_of_all();
        assert_eq!((usage.rss, mm.rss().anon), (BYTES, PAGES), "address space {number}");
        let own = if number < changed { own } else { 0 };
        assert_eq!(usage.uss(), own * PAGE, "address space {number}");
    }
}

fn flushes(machine: &Hosted) -> (u64, u64) {
    let counters = machine.counters();
    (counters.flushes_local, counters.flushes_remote)
}

/// So many address spaces beside the first. Returns how often CPUs flushed while they were forked, while one
/// changed its rights, and while they exited.
fn share(count: usize) -> [(u64, u64); 3] {
    let mut rounds = [(0, 0); 3];
    let config = HostedConfig::new(64 * MIB).with_cpus(2);
    with_forks(config, ForkStrategy::Share, |machine, manager| {
        let (mm, none) = (manager.new_mm().unwrap(), all_tables(manager));
        mm.mmap(&anonymous(BASE, BYTES)).unwrap();
        mm.madvise(VirtAddr(BASE), BYTES, Advice::PopulateWrite).unwrap();
        // Both CPUs run it, so that each flush interrupts the other.
        mm.switch_in();
        machine.run_on(CpuId(1), || mm.switch_in());
        let one = all_tables(manager);
        assert_eq!(one - none + 1, TABLES + UPPER, "an address space has its root before it maps anything");
        let since = |before: (u64, u64)| {
            let now = flushes(machine);
            (now.0 - before.0, now.1 - before.1)
        };
        let before = flushes(machine);
        let mut spaces: Vec<Space<'_>> = (0..count).map(|_| mm.fork().unwrap()).collect();
        rounds[0] = since(before);
        // Tables of the region: as with one.
        assert_eq!(all_tables(manager), one + UPPER * count as u64);
        check_usage(&spaces, 0, 0);
        let share = (PAGE << 12) / (count as u64 + 1);
        assert!(spaces.iter().all(|mm| mm.usage_of_all().pss == PAGES * share));
        assert!(spaces.iter().all(|mm| mm.translate(VirtAddr(BASE + PAGE), Access::Read).is_some()));
        // Two stores by one address space, in two tables: each of these is its own now.
        for at in [BASE, BASE + 6 * MIB] {
            spaces[0].fault(VirtAddr(at), Access::Write).unwrap();
        }
        assert_eq!(all_tables(manager), one + UPPER * count as u64 + 2);
        check_usage(&spaces, 1, 2);
        let before = flushes(machine);
        mm.mprotect(VirtAddr(BASE), BYTES, Protection::READ).unwrap();
        rounds[1] = since(before);
        let before = flushes(machine);
        spaces.drain(..).for_each(Space::exit);
        rounds[2] = since(before);
        assert_eq!(mm.usage_of_all().uss(), BYTES);
        machine.run_on(CpuId(1), || mm.switch_out());
        mm.switch_out();
        mm.exit();
    });
    rounds
}

#[test]
fn a_region_costs_its_tables_once_and_each_space_has_its_exact_set() {
    for count in [1, 4, 16] {
        let [forks, change, exits] = share(count);
        println!("{count}: forks {forks:?}, mprotect {change:?}, exits {exits:?}");
        // The first fork takes the right to store from the region; the others find that done.
        assert_eq!(forks, (1, 1), "{count} address spaces");
        assert_eq!(change, (1, 1), "one round for all of the region");
        assert_eq!(exits, (0, 0), "no CPU runs them");
    }
}
