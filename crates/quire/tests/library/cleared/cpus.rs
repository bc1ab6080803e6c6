//! Several CPUs at once: each clears nothing that another one has cleared, whatever their interleaving.

use std::sync::Barrier;

use fastrand::Rng;
use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::page_alloc::Gfp;
use quire::stats::Stat;
use quire::vm::FolioPolicy;
use testkit::{order, ranges_of, seed};

use super::alloc::write_to;
use super::support::{BASE, Ground, MIB, PAGE, at, config, only, promise, report, sweep, take, unmarked};
use crate::vm::world::{Manager, Space, anonymous, store};

const CPUS: usize = 3;
const ROUNDS: u64 = 6;
const LEN: u64 = 4 * MIB;

/// Runs what frees frames, while no other CPU allocates or frees. Returns how many marks are lost by lists that overflow, at
/// most: those of frames that were on lists, and that lists have given back.
fn freeing(manager: &Manager<'_>, free: impl FnOnce()) -> u64 {
    let (marks, drained) = (manager.pages().zeroed_on_lists(), manager.stat(Stat::PcpDrain));
    free();
    marks.min(manager.stat(Stat::PcpDrain) - drained)
}

/// Runs `work` on all CPUs of a machine whose memory is all known to be zero, with an address space that they share. Checks
/// that they clear no frame again, and lose no mark but those of `lost` frames, and of lists that overflow, which `work`
/// counts.
fn check(
    ground: Ground,
    folios: FolioPolicy,
    lost: u64,
    work: impl Fn(&Hosted, &Manager<'_>, &Space<'_>, CpuId, Rng) -> u64 + Sync,
) {
    let machine = HostedConfig::new(96 * MIB).with_cpus(CPUS).watching_clears().build().unwrap();
    promise(&machine);
    let config = config(folios);
    let manager = machine
        .run_on(CpuId(0), || hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config).unwrap());
    let (held, before) = machine.run_on(CpuId(0), || {
        let held = ground.hold(&manager);
        sweep(&machine, &manager);
        (held, unmarked(&machine, &manager))
    });
    let first = seed(fastrand::u64(..1 << 40));
    println!("QUIRE_SEED={first}");
    let mm = machine.run_on(CpuId(0), || manager.new_mm().unwrap());
    let overflowed = machine
        .spawn_cpus(CPUS, |cpu| work(&machine, &manager, &mm, cpu, Rng::with_seed(first + u64::from(cpu.0))));
    machine.run_on(CpuId(0), || {
        let most = lost + overflowed.into_iter().sum::<u64>() + freeing(&manager, || mm.exit());
        let again = report(&machine);
        let after = unmarked(&machine, &manager) - before;
        assert!(again + after <= most, "{again} were cleared again, {after} lost their mark: at most {most}");
        held.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
        manager.validate().unwrap();
        manager.pages().verify_zeroes().unwrap();
    });
    machine.assert_clean();
}

/// Each takes folios, stores to some, and frees all, while one clears ahead. The one mark that is lost is that of the root
/// table of the address space.
fn folios(machine: &Hosted, manager: &Manager<'_>, cpu: CpuId, mut rng: Rng, folio: Order) -> u64 {
    let (pages, mut held) = (manager.pages(), Vec::<Frame>::new());
    for _ in 0..1500 {
        match rng.u8(..8) {
            0 if cpu.0 == 0 => _ = pages.store().zero_ahead(),
            0..4 if held.len() < 12 => held.extend(take(manager, Gfp::USER, folio)),
            _ if held.is_empty() => {}
            _ => {
                let frame = held.swap_remove(rng.usize(..held.len()));
                let still = machine.frames_still_zero(FrameRange::folio(frame, folio)) == folio.frames();
                if still && rng.bool() {
                    pages.free_zeroed_raw(frame, folio).unwrap();
                } else {
                    write_to(machine, frame, folio);
                    pages.free_raw(frame, folio).unwrap();
                }
            }
        }
    }
    for frame in held {
        write_to(machine, frame, folio);
        pages.free_raw(frame, folio).unwrap();
    }
    // No list overflows.
    0
}

#[test]
fn folios_on_three_cpus() {
    for number in [0, 3, 6] {
        let folio = order(number);
        check(Ground::Pieces, FolioPolicy::default(), 1, |machine, manager, _, cpu, rng| {
            folios(machine, manager, cpu, rng, folio)
        });
    }
    check(Ground::Blocks, FolioPolicy::default(), 1, |machine, manager, _, cpu, rng| {
        folios(machine, manager, cpu, rng, Order::BLOCK)
    });
}

/// All CPUs fault on the same pages of one address space, in different order. One that comes too late frees what it has
/// cleared.
#[test]
fn faults_on_three_cpus() {
    for (number, ground) in [(0, Ground::Pieces), (4, Ground::Pieces), (9, Ground::Blocks)] {
        let barrier = Barrier::new(CPUS);
        // Page tables whose entries were all taken away.
        check(ground, only(number), ROUNDS, |machine, manager, mm, cpu, mut rng| {
            let mut overflowed = 0;
            mm.switch_in();
            for _ in 0..ROUNDS {
                if cpu.0 == 0 {
                    mm.mmap(&anonymous(BASE, LEN)).unwrap();
                }
                barrier.wait();
                let turned = rng.u64(..LEN / PAGE);
                for page in (0..LEN / PAGE).map(|page| (page + turned) % (LEN / PAGE)) {
                    store(machine, mm, BASE + page * PAGE + u64::from(cpu.0) * 8, page | 1).unwrap();
                }
                barrier.wait();
                // The others wait for the next round.
                if cpu.0 == 0 {
                    overflowed += freeing(manager, || mm.munmap(at(BASE), LEN).unwrap());
                    manager.zero_ahead();
                }
            }
            mm.switch_out();
            overflowed
        });
    }
}
