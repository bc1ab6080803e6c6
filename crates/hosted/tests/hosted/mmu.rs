//! The software MMU against page tables built by hand.

use std::sync::atomic::Ordering;

use crate::tables::*;
use hosted::{FaultCause, HostedConfig, MemoryRange, OnViolation, PageFault, Violation};
use quire::addr::{Frame, VirtAddr};
use quire::platform::FramePlatform;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const ADDR: u64 = 0x1234_5678_9000;

fn small() -> hosted::Hosted {
    machine(HostedConfig::new(4 * MIB))
}

fn fault(addr: u64, write: bool, exec: bool, cause: FaultCause) -> PageFault {
    PageFault { addr: VirtAddr(addr), write, exec, cause }
}

/// Leaves of every size, under 4 and 5 levels, at low and high halves.
#[test]
#[cfg(not(miri))] // Two gibibytes of memory are too much for it.
fn every_level_and_size_translates() {
    for (five_level, levels, high) in
        [(false, 4, 0xffff_8000_0000_0000), (true, 5, 0xff00_0000_0000_0000_u64)]
    {
        for base in [0, 0x7abc_dead_b000, high | 0x12_3456_7000] {
            for (leaf_level, frame) in [(1_u64, 300_u64), (2, 512), (3, 1 << 18)] {
                let config = HostedConfig { five_level, ..HostedConfig::new(2 * GIB) };
                let machine = machine(config);
                let large = if leaf_level > 1 { LARGE } else { 0 };
                let size = 1_u64 << (3 + 9 * leaf_level);
                map(&machine, levels, base, leaf_level, frame << 12 | ALL | large);
                machine.run_on(CPU0, || {
                    load(&machine, Some(ROOT));
                    let start = base & !(size - 1);
                    for offset in [0, 4095, size / 2, size - 1] {
                        write(&machine, start + offset, offset as u8 | 1).unwrap();
                        let phys = quire::addr::PhysAddr((frame << 12) + offset);
                        // SAFETY: the leaf maps memory of the machine (H1) and no other thread runs.
                        assert_eq!(unsafe { *machine.direct_map(phys) }, offset as u8 | 1);
                        assert_eq!(read(&machine, start + offset), Ok(offset as u8 | 1));
                    }
                    let seen = machine.leaves(ROOT);
                    assert_eq!(seen.len(), 1);
                    assert_eq!(seen[0], machine.probe(ROOT, VirtAddr(base)).unwrap());
                    assert_eq!(
                        (seen[0].addr.0, seen[0].frame.0, seen[0].frames * 4096),
                        (start, frame, size)
                    );
                    assert!(
                        seen[0].accessed && seen[0].dirty && seen[0].write && seen[0].user && seen[0].exec
                    );
                    let next = start.wrapping_add(size);
                    assert_eq!(read(&machine, next), Err(fault(next, false, false, FaultCause::NotPresent)));
                });
            }
        }
    }
}

#[test]
fn accesses_cross_pages_and_stop_at_the_first_that_faults() {
    let machine = small();
    for (page, frame) in [(0, 300), (1, 200)] {
        map(&machine, 4, ADDR + page * 4096, 1, frame << 12 | ALL);
    }
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        let text = (0..5000).map(|at| (at % 251) as u8).collect::<Vec<_>>();
        let mut back = vec![0; 5000];
        machine.write(VirtAddr(ADDR + 3001), &text).unwrap();
        machine.read(VirtAddr(ADDR + 3001), &mut back).unwrap();
        assert_eq!(text, back);
        let error = machine.write(VirtAddr(ADDR + 8190), &[1, 2, 3, 4]);
        assert_eq!(error, Err(fault(ADDR + 8192, true, false, FaultCause::NotPresent)));
        assert_eq!((read(&machine, ADDR + 8190), read(&machine, ADDR + 8191)), (Ok(1), Ok(2)));
        let word = VirtAddr(ADDR + 4096);
        machine.write(word, &7_u64.to_ne_bytes()).unwrap();
        assert_eq!((machine.fetch_add(word, 5), machine.fetch_add(word, 0)), (Ok(7), Ok(12)));
    });
}

/// Every right, withdrawn at every level, refuses exactly its accesses.
#[test]
fn rights_count_at_every_level() {
    for withdrawn_at in 1..=4 {
        for (bit, allowed) in
            [(WRITE, [true, false, true]), (USER, [false; 3]), (NO_EXECUTE, [true, true, false])]
        {
            let machine = small();
            let leaf = map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
            let slot = match withdrawn_at {
                1 => leaf,
                level => {
                    // Tables were made from the root down, so the table of level 4 - k is k frames behind the root.
                    entry(&machine, Frame(ROOT.0 + 4 - level), ADDR >> (3 + 9 * level) & 511)
                }
            };
            slot.fetch_xor(bit, Ordering::Relaxed);
            machine.run_on(CPU0, || {
                load(&machine, Some(ROOT));
                let refused = |write, exec| fault(ADDR, write, exec, FaultCause::Protection);
                let expect = |index: usize, error| if allowed[index] { Ok(()) } else { Err(error) };
                assert_eq!(read(&machine, ADDR).map(drop), expect(0, refused(false, false)));
                assert_eq!(write(&machine, ADDR, 0), expect(1, refused(true, false)));
                assert_eq!(machine.fetch(VirtAddr(ADDR)).map(drop), expect(2, refused(false, true)));
            });
        }
    }
}

#[test]
fn accessed_and_dirty_bits_are_set_as_hardware_does() {
    let machine = machine(HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(8 << 20) });
    let leaf = map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    let history = || leaf.load(Ordering::Relaxed) & (ACCESSED | DIRTY);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        read(&machine, ADDR).unwrap();
        assert_eq!(history(), ACCESSED);
        for level in 2..=4 {
            let upper = entry(&machine, Frame(ROOT.0 + 4 - level), ADDR >> (3 + 9 * level) & 511);
            assert_eq!(upper.load(Ordering::Relaxed) & (ACCESSED | DIRTY), ACCESSED, "level {level}");
        }
        // The cached entry was clean: the first store walks again, later ones do not.
        write(&machine, ADDR, 1).unwrap();
        assert_eq!(history(), ACCESSED | DIRTY);
        leaf.fetch_and(!(ACCESSED | DIRTY), Ordering::Relaxed);
        write(&machine, ADDR, 1).unwrap();
        read(&machine, ADDR).unwrap();
        assert_eq!(history(), 0, "a cached translation sets nothing");
        let unrecorded = Violation::UnrecordedStore { cpu: CPU0, root: ROOT, addr: ADDR };
        assert_eq!(machine.take_violations(), [unrecorded], "that the accessed bit is not set is fine");
        flush_here(&machine, &range_flush(ADDR, 4096, 4096));
        write(&machine, ADDR, 1).unwrap();
        assert_eq!(history(), ACCESSED | DIRTY);
        let refused = map(&machine, 4, ADDR + 4096, 1, 301 << 12 | PRESENT | USER);
        write(&machine, ADDR + 4096, 1).unwrap_err();
        assert_eq!(
            refused.load(Ordering::Relaxed) & (ACCESSED | DIRTY),
            0,
            "a refused access leaves no trace"
        );
    });
    let counters = machine.counters();
    assert_eq!((counters.tlb_misses, counters.tlb_hits, counters.mmu_faults), (4, 2, 1));
}

#[test]
fn what_is_not_there_faults() {
    let machine = small();
    machine.run_on(CPU0, || {
        let absent = |addr| Err(fault(addr, false, false, FaultCause::NotPresent));
        assert_eq!(read(&machine, ADDR), absent(ADDR), "no root is loaded");
        load(&machine, Some(ROOT));
        assert_eq!(read(&machine, ADDR), absent(ADDR));
        map(&machine, 4, ADDR, 1, 300 << 12 | (ALL & !PRESENT));
        assert_eq!(read(&machine, ADDR), absent(ADDR), "a clear present bit makes all others void");
        let hole = 1 << 47;
        assert_eq!(read(&machine, hole), Err(fault(hole, false, false, FaultCause::NonCanonical)));
        assert!(machine.probe(ROOT, VirtAddr(ADDR)).is_none() && machine.leaves(ROOT).is_empty());
        load(&machine, None);
        assert_eq!(read(&machine, ADDR), absent(ADDR));
    });
    machine.assert_clean();
}

#[test]
fn malformed_entries_are_named_violations() {
    let config = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(4 * MIB) };
    let cases = [(2, 512 << 12 | 1 << 13), (3, 1 << 20), (4, 0), (2, 1 << 14)];
    for (level, address) in cases {
        let machine = machine(config.clone());
        map(&machine, 4, ADDR, level, address | ALL | LARGE);
        let expected = Violation::ReservedBits {
            cpu: CPU0,
            addr: ADDR,
            level: level as u32,
            entry: address | ALL | LARGE,
        };
        machine.run_on(CPU0, || {
            load(&machine, Some(ROOT));
            assert_eq!(read(&machine, ADDR), Err(fault(ADDR, false, false, FaultCause::Reserved)));
        });
        assert_eq!((machine.take_violations(), machine.violation_count()), (vec![expected], 0));
    }
}

/// Entries into holes and beyond the end are refused before anything is touched (H4).
#[test]
fn entries_that_name_no_memory_are_refused() {
    let ranges = vec![MemoryRange::new(0, MIB), MemoryRange::new(3 * MIB, MIB)];
    let config =
        HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(0).with_ranges(ranges) };
    // (leaf level, frame): a hole, beyond the end, a 2 MiB leaf that begins in memory and runs into a hole, the end of
    // the address field, and tables in the same places.
    let cases = [(1, 256), (1, 1024), (2, 0), (2, 512), (1, (1 << 40) - 1)];
    for (level, frame) in cases {
        let machine = machine(config.clone());
        let large = if level > 1 { LARGE } else { 0 };
        map(&machine, 4, ADDR, level, frame << 12 | ALL | large);
        map(&machine, 4, ADDR + GIB, 2, frame << 12 | ALL);
        machine.run_on(CPU0, || {
            load(&machine, Some(ROOT));
            assert_eq!(write(&machine, ADDR, 1).unwrap_err().cause, FaultCause::Reserved);
            let table = read(&machine, ADDR + GIB).unwrap_err().cause;
            assert_eq!(
                table == FaultCause::Reserved,
                frame != 0,
                "frame 0 is memory, and its entries are not present"
            );
        });
        assert!(machine.violations().iter().all(|seen| matches!(seen, Violation::OutsideMemory { .. })));
        assert!(!machine.violations().is_empty());
    }
}

#[test]
fn a_machine_without_a_model_walks_every_time() {
    let machine = machine(HostedConfig { tlb_model: false, ..HostedConfig::new(4 * MIB) });
    let leaf = map(&machine, 4, ADDR, 1, 300 << 12 | ALL);
    machine.run_on(CPU0, || {
        load(&machine, Some(ROOT));
        read(&machine, ADDR).unwrap();
        leaf.store(0, Ordering::Relaxed);
        assert_eq!(read(&machine, ADDR).unwrap_err().cause, FaultCause::NotPresent);
        machine.frames_freed(one(300));
        flush_here(&machine, &whole_flush());
    });
    machine.assert_clean();
    assert_eq!(machine.counters().tlb_hits, 0);
}
