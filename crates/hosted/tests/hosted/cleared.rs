//! Memory that is cleared twice is noticed, and no other.

use hosted::raw::RawMachine;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange};
use quire::arch::{ReadyClear, ReadyCopy};
use quire::cpu::CpuId;

fn watched(test: impl FnOnce(&Hosted)) {
    let machine = HostedConfig::new(4 << 20).watching_clears().build().unwrap();
    machine.run_on(CpuId(0), || test(&machine));
}

fn run(first: u64, count: u64) -> FrameRange {
    FrameRange::new(Frame(first), count)
}

fn clear(machine: &Hosted, first: u64, count: u64) -> u64 {
    let before = machine.frames_cleared_again();
    machine.clear_raw(run(first, count), ReadyClear::PLAIN);
    machine.frames_cleared_again() - before
}

#[test]
fn what_is_still_zero_counts() {
    watched(|machine| {
        assert_eq!(clear(machine, 10, 8), 0);
        assert_eq!(clear(machine, 14, 8), 4);
        let found = machine.take_cleared_again();
        assert_eq!(found.iter().map(|found| found.frames).collect::<Vec<_>>(), [run(14, 4)]);
        assert_eq!(machine.frames_cleared_again(), 0);
        assert_eq!(machine.frames_still_zero(run(0, 100)), 12);
    });
}

#[test]
fn what_was_stored_to_does_not() {
    watched(|machine| {
        clear(machine, 0, 8);
        machine.store_entry_raw(Frame(3), 511, quire::arch::Entry::from_bits(1 << 9));
        machine.copy_raw(run(100, 2), Frame(5), ReadyCopy::PLAIN);
        assert_eq!(machine.frames_still_zero(run(0, 8)), 5);
        assert_eq!(clear(machine, 0, 8), 5);
        // A word that is zero again counts as zero: only the contents tell.
        machine.store_entry_raw(Frame(3), 511, quire::arch::Entry::from_bits(1 << 9));
        machine.store_entry_raw(Frame(3), 511, quire::arch::Entry::from_bits(0));
        assert_eq!(clear(machine, 3, 1), 1);
    });
}

#[test]
fn promised_memory_counts_from_the_start() {
    watched(|machine| {
        machine.promise_zeroes(run(32, 4));
        assert_eq!(clear(machine, 30, 8), 4);
    });
    let machine = HostedConfig::new(4 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        machine.promise_zeroes(run(0, 8));
        assert_eq!((clear(&machine, 0, 8), clear(&machine, 0, 8)), (0, 0), "it does not watch");
    });
}
