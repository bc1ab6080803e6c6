//! Moves while other CPUs load, store, fault, fork, unmap and truncate files: no store is lost.

use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use hosted::{FaultCause, Hosted, HostedConfig};
use quire::addr::{BlockNumber, FrameRange, VirtAddr};
use quire::cpu::CpuId;
use quire::page_alloc::{Gfp, NodeSet};
use quire::stats::Stat;
use quire::vm::{Access, Advice, Backing, FolioPolicy, MapRequest, OrderPolicy, Remap, Sharing};

use crate::migrate::support::PAGE;
use crate::migrate::world::{FORKS, MIB, Manager, Space, anonymous, load, store, with_forks};
use testkit::{Stress, order, seed};

const CPUS: usize = 4;
const BASE: u64 = 0x7000_0000;
const STRETCH: u64 = 4 * MIB;
/// Pages to which all CPUs add.
const SUMS: u64 = 48;
const SUMS_AT: u64 = 2 * BASE;
const SHARED_AT: u64 = 3 * BASE;

/// Adds one to a word of the program's memory, as one locked instruction.
fn add(machine: &Hosted, mm: &Space<'_>, addr: u64) {
    while let Err(fault) = machine.fetch_add(VirtAddr(addr), 1) {
        assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
        mm.fault(VirtAddr(addr), Access::Write).expect("mapped");
    }
}

/// Moves random frames.
fn mover(manager: &Manager<'_>, rng: &mut Rng) {
    if rng.bool() {
        let block = BlockNumber(rng.u32(..64));
        manager.move_out(FrameRange::new(block.first_frame(), 512 * rng.u64(1..=2)));
    } else if rng.u8(..4) == 0 {
        manager.compact(NodeSet::ALL);
    } else if let Ok(run) = manager.alloc_contig(Gfp::USER, 24, 8) {
        manager.pages().free_contig(run).expect("it is ours");
    }
}

fn work(machine: &Hosted, mm: &Space<'_>, cpu: CpuId, rng: &mut Rng) {
    let own = BASE + u64::from(cpu.0) * STRETCH;
    let (at, pages, mark) = (own + rng.u64(..256) * PAGE, rng.u64(1..300), rng.u64(..) << 12);
    mm.mmap(&anonymous(at, pages * PAGE)).expect("memory");
    (0..pages).for_each(|page| store(machine, mm, at + page * PAGE, mark + page).expect("mapped"));
    let check = |mm: &Space<'_>, at: u64| {
        for page in 0..pages {
            assert_eq!(load(machine, mm, at + page * PAGE), Ok(mark + page), "page {page}");
        }
    };
    check(mm, at);
    match rng.u32(..4) {
        0 => {
            let child = mm.fork().expect("memory");
            mm.switch_out();
            child.switch_in();
            check(&child, at);
            child.switch_out();
            mm.switch_in();
            child.exit();
        }
        1 => {
            let to = VirtAddr(own + 2 * STRETCH * CPUS as u64 + rng.u64(..128) * PAGE);
            mm.mremap(VirtAddr(at), pages * PAGE, pages * PAGE, Remap::Fixed(to)).expect("memory");
            check(mm, to.0);
            mm.munmap(to, pages * PAGE).expect("mapped");
            return;
        }
        2 => mm.madvise(VirtAddr(at), pages * PAGE / 2 / PAGE * PAGE, Advice::DontNeed).expect("mapped"),
        _ => check(mm, at),
    }
    mm.munmap(VirtAddr(at), pages * PAGE).expect("mapped");
}

#[test]
fn nothing_that_is_stored_during_moves_is_lost() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    let config = HostedConfig::new(128 * MIB).with_cpus(CPUS);
    with_forks(config, FORKS[first as usize % 2], |machine, manager| {
        let policy = FolioPolicy::FRAMES.with(order(4), OrderPolicy::Always);
        manager.set_folio_policy(
            policy.with(order(9), OrderPolicy::Always).with_pmd_mapped(first.is_multiple_of(3)),
        );
        let file = manager.shmem(SUMS * PAGE).expect("memory");
        let mm = manager.new_mm().expect("memory");
        mm.mmap(&anonymous(SUMS_AT, SUMS * PAGE)).expect("memory");
        let backing = Backing::File { file: &file, page_offset: 0 };
        let shared = MapRequest { backing, sharing: Sharing::Shared, ..anonymous(SHARED_AT, SUMS * PAGE) };
        mm.mmap(&shared).expect("memory");
        let sums: Vec<AtomicU64> = (0..2 * SUMS).map(|_| AtomicU64::new(0)).collect();
        machine.spawn_cpus(CPUS, |cpu| {
            mm.switch_in();
            let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            let stress = Stress::begin();
            while stress.goes_on(|| manager.stat(Stat::PgmigrateSuccess) > 1000) {
                if cpu.0 == 0 {
                    mover(manager, &mut rng);
                    continue;
                }
                for _ in 0..200 {
                    let page = rng.u64(..2 * SUMS);
                    let base = if page < SUMS { SUMS_AT } else { SHARED_AT };
                    add(machine, &mm, base + page % SUMS * PAGE);
                    sums[page as usize].fetch_add(1, Ordering::Relaxed);
                }
                work(machine, &mm, cpu, &mut rng);
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        mm.switch_in();
        for page in 0..2 * SUMS {
            let base = if page < SUMS { SUMS_AT } else { SHARED_AT };
            let sum = sums[page as usize].load(Ordering::Relaxed);
            assert_eq!(load(machine, &mm, base + page % SUMS * PAGE), Ok(sum), "page {page}");
        }
        println!("{} frames moved", manager.stat(Stat::PgmigrateSuccess));
        assert!(manager.stat(Stat::PgmigrateSuccess) > 1000);
        mm.switch_out();
        mm.validate().expect("broken address space");
        mm.exit();
    });
}
