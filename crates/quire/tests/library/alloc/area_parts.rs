//! Parts of an area of 1 GiB that come and go.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, InterruptPlan, MemoryRange};
use quire::addr::{Frame, FrameRange};
use quire::cpu::CpuId;
use quire::error::HotplugError;
use quire::limits::{BLOCK_FRAMES, RANGE_BLOCKS};
use quire::page_alloc::AllocatorConfig;
use quire::platform::Context;
use testkit::{PATIENCE, held_up, ranges_of};

use crate::alloc::areas::{GIB, Pages, counted};

/// A machine of one range behind 4 GiB, of which so much is there from the start and the rest is added later.
fn with_later<R>([here, later]: [u64; 2], test: impl FnOnce(&Hosted, &Pages<'_>, [FrameRange; 2]) -> R) -> R {
    let ranges = vec![MemoryRange::new(4 * GIB, here + later)];
    let machine = HostedConfig::sparse(GIB).with_ranges(ranges).with_cpus(2).build().unwrap();
    let (pages, parts) = machine.run_on(CpuId(0), || {
        let all = ranges_of(&machine)[0];
        let middle = Frame((4 * GIB + here) / 4096);
        let parts = [FrameRange::new(all.frames.start, here / 4096), FrameRange::new(middle, later / 4096)];
        let [first, second] = parts.map(|frames| quire::page_alloc::MemoryRange { frames, ..all });
        let config = AllocatorConfig::default();
        (hosted::raw::page_allocator_with_later(&machine, &[first], &[second], config).unwrap(), parts)
    });
    test(&machine, &pages, parts)
}

#[test]
fn an_area_that_is_not_there_yet_is_no_page() {
    with_later([GIB, GIB], |machine, pages, [_, late]| {
        machine.run_on(CpuId(0), || {
            assert_eq!(counted(pages), (0, 0));
            pages.add_memory_raw(late, false).unwrap();
            assert_eq!(counted(pages), (1, 0));
            pages.validate().unwrap();
        });
    });
}

/// A page of 1 GiB would have to be in two ranges, which are emptied one at a time.
#[test]
fn an_area_that_two_ranges_share_is_no_page() {
    with_later([GIB * 3 / 2, GIB / 2], |machine, pages, [_, late]| {
        machine.run_on(CpuId(0), || {
            for _ in 0..2 {
                assert_eq!(counted(pages), (0, 0));
                pages.add_memory_raw(late, false).unwrap();
                assert_eq!(counted(pages), (0, 0));
                pages.validate().unwrap();
                pages.remove_memory(late, |_| ()).unwrap();
            }
        });
    });
}

/// A range of the machine is emptied as a whole, so memory of two of them goes in two calls.
#[test]
fn memory_of_two_ranges_is_not_removed_in_one_call() {
    with_later([GIB, GIB / 2], |machine, pages, [_, late]| {
        machine.run_on(CpuId(0), || {
            pages.add_memory_raw(late, false).unwrap();
            let before = pages.memory_info();
            let block = BLOCK_FRAMES as u64;
            let both = FrameRange::new(Frame(late.start.0 - block), 2 * block);
            let never = |_| panic!("nothing is emptied");
            assert_eq!(pages.remove_memory(both, never), Err(HotplugError::SeveralRanges));
            assert_eq!(pages.memory_info(), before);
            for start in [both.start, late.start] {
                pages.remove_memory(FrameRange::new(start, block), |_| ()).unwrap();
            }
            pages.validate().unwrap();
        });
    });
}

/// One half of an area is added while another CPU removes the other half, at each moment of the first call.
#[test]
fn an_area_of_which_parts_come_and_go_at_once_is_no_page() {
    with_later([GIB, GIB], |machine, pages, [_, late]| {
        let [low, high] = [0, late.count / 2].map(|at| FrameRange::new(late.start.add(at), late.count / 2));
        let add = |range| pages.add_memory_raw(range, false).unwrap();
        let remove = |range| pages.remove_memory(range, |_| ()).unwrap();
        let calls = machine.run_on(CpuId(0), || {
            add(low);
            let count = |work: &dyn Fn()| {
                machine.interrupt_at_calls(InterruptPlan::Count, Context::HardInterrupt, || (), work).events
            };
            count(&|| add(high)).max(count(&|| remove(high)))
        });
        // All but the last calls look at the blocks, or put them into the pool.
        for at in (0..calls).filter(|at| at % 37 == 0 || at + 40 > calls) {
            for [first, second] in [[high, low], [low, high]] {
                let plan = InterruptPlan::Nth(at);
                held_up(machine, plan, PATIENCE, || add(first), || remove(second));
                assert_eq!(counted(pages), (0, 0), "held up at call {at} of {calls}");
            }
        }
        machine.run_on(CpuId(0), || {
            add(high);
            assert_eq!(counted(pages), (1, 0));
            pages.validate().unwrap();
        });
    });
}

/// The most calls of the machine between two reschedule points of some work.
fn longest(machine: &Hosted, work: impl FnOnce()) -> u64 {
    let points = || machine.counters().reschedule_points;
    let (mut since, mut longest, mut last) = (0, 0, points());
    let note = || {
        since = if points() == last { since + 1 } else { 0 };
        (longest, last) = (longest.max(since), points());
    };
    machine.interrupt_at_calls(InterruptPlan::Every(1), Context::HardInterrupt, note, work);
    longest
}

/// Memory comes and goes with reschedule points after so many blocks, however much of it there is.
#[test]
fn memory_comes_and_goes_some_blocks_at_a_time() {
    let longest_of = |gibs: u64| {
        with_later([GIB, gibs * GIB], |machine, pages, [_, late]| {
            machine.run_on(CpuId(0), || {
                let added = longest(machine, || pages.add_memory_raw(late, false).unwrap());
                let removed = longest(machine, || pages.remove_memory(late, |_| ()).unwrap());
                [added, removed]
            })
        })
    };
    let [few, many] = [2, 4].map(longest_of);
    println!("{few:?} calls between reschedule points");
    assert_eq!(few, many);
    assert!(few.iter().all(|&calls| calls < 16 * u64::from(RANGE_BLOCKS)), "{few:?}");
}
