//! How many instructions of the library the common case takes, counted by the processor's trap flag.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::error::AllocError;
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator, Urgency};
use quire::platform::Context;

use super::ranges_of;
use pins::Machine;

/// A tenth above what rustc 1.95 makes of it in the profile of `cargo test`, with assertions and overflow
/// checks and a call around each; where all of it is inlined and optimised there are some 26 and 40.
const ALLOC_AT_MOST: u64 = 48;
const FREE_AT_MOST: u64 = 74;

/// A request that nothing can serve, after another one found all lists empty.
const REFUSAL_AT_MOST: u64 = 390;

/// A free where memory is full and each frame is of another block, its way into the block included: 463. It had 586
/// when each looked up its block's shard, and 2,365 when the eight words of the block were taken as a whole.
const SCATTERED_FREE_AT_MOST: u64 = 510;

type Allocator<'a> = PageAllocator<'a, Machine<'a, false>>;

#[inline(never)]
fn alloc(allocator: &Allocator<'_>) -> Frame {
    allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap()
}

#[inline(never)]
fn free(allocator: &Allocator<'_>, frame: Frame) {
    allocator.free_raw(frame, Order::FRAME).unwrap();
}

/// Instructions of `work`, and of the trap itself.
pub(super) fn steps_of(machine: &Hosted, work: &mut dyn FnMut()) -> u64 {
    // SAFETY: H7: the handler does nothing.
    let counted =
        unsafe { machine.interrupt_at_steps(InterruptPlan::Count, Context::HardInterrupt, || (), work) };
    counted.unwrap().events
}

#[test]
fn the_common_case_is_short() {
    let config = HostedConfig { tlb_model: false, check_ranks: false, ..HostedConfig::new(64 << 20) };
    let machine = config.build().unwrap();
    machine.run_on(CpuId(0), || {
        let plain = Machine::new(&machine);
        let allocator =
            hosted::raw::page_allocator(&plain, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let steps = |work: &mut dyn FnMut()| steps_of(&machine, work);
        let mut frame = alloc(&allocator);
        free(&allocator, frame);
        let nothing = steps(&mut || ());
        let of_alloc = steps(&mut || frame = alloc(&allocator)) - nothing;
        let of_free = steps(&mut || free(&allocator, frame)) - nothing;
        println!("instructions: {of_alloc} of an alloc, {of_free} of a free");
        assert!(
            of_alloc <= ALLOC_AT_MOST,
            "an alloc takes {of_alloc} instructions, at most {ALLOC_AT_MOST} are allowed"
        );
        assert!(
            of_free <= FREE_AT_MOST,
            "a free takes {of_free} instructions, at most {FREE_AT_MOST} are allowed"
        );
        // The count is of these very calls: twice as many cost twice as much.
        let pairs = |count: u64| {
            steps(&mut || (0..count).for_each(|_| free(&allocator, alloc(&allocator)))) - nothing
        };
        let (one, three) = (pairs(1), pairs(3));
        assert!(three >= 3 * (of_alloc + of_free) - 20 && three <= 3 * one + 20, "{one} {three}");
    });
}

#[test]
fn a_second_refusal_is_short() {
    const ALL: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
    let config = HostedConfig { tlb_model: false, check_ranks: false, ..HostedConfig::new(64 << 20) };
    let machine = config.build().unwrap();
    machine.run_on(CpuId(0), || {
        let plain = Machine::<false>::new(&machine);
        let allocator =
            hosted::raw::page_allocator(&plain, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let refused = || assert_eq!(allocator.alloc_raw(ALL, Order::FRAME), Err(AllocError::OutOfMemory));
        while allocator.alloc_raw(ALL, Order::FRAME).is_ok() {}
        let second = steps_of(&machine, &mut || refused());
        println!("instructions: {second} of a refusal");
        assert!(
            second <= REFUSAL_AT_MOST,
            "a refusal takes {second} instructions, at most {REFUSAL_AT_MOST} are allowed"
        );
    });
}

/// The lists overflow, and the sort by block finds a single frame for each: it goes into the block's bits by
/// itself, and the zone's number of free frames changes once for each drain.
#[test]
fn a_free_of_scattered_frames_is_short() {
    let config = HostedConfig { tlb_model: false, check_ranks: false, ..HostedConfig::new(256 << 20) };
    let machine = config.build().unwrap();
    machine.run_on(CpuId(0), || {
        let plain = Machine::new(&machine);
        let allocator =
            hosted::raw::page_allocator(&plain, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let mut frames: Vec<_> =
            std::iter::from_fn(|| allocator.alloc_raw(Gfp::USER, Order::FRAME).ok()).collect();
        frames.sort_by_key(|frame| (frame.index_in_block(), frame.block().0));
        let (first, rest) = frames.split_at(frames.len() / 2);
        first.iter().for_each(|&frame| free(&allocator, frame));
        let (counted, rest) = rest.split_at(512);
        let steps = steps_of(&machine, &mut || counted.iter().for_each(|&frame| free(&allocator, frame)));
        let each = steps / counted.len() as u64;
        println!("instructions: {each} of a free of a scattered frame");
        assert!(
            each <= SCATTERED_FREE_AT_MOST,
            "a free takes {each} instructions, at most {SCATTERED_FREE_AT_MOST} are allowed"
        );
        rest.iter().for_each(|&frame| free(&allocator, frame));
        allocator.lists().drain_all();
        allocator.validate().unwrap();
    });
}
