//! Interrupts that allocate while what they interrupted, or another CPU, holds locks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, InterruptPlan, MemoryRange as Range};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::error::AllocError;
use quire::page_alloc::{AllocatorConfig, Gfp, PageAllocator, Urgency};
use quire::platform::{Context, ListGuard};
use testkit::{order, ranges_of, with_allocator, within};

type Allocator<'m> = PageAllocator<'m, Hosted>;

const MIB: u64 = 1 << 20;
const ALL: Gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };

/// Turns of a spin loop that no lock is held for.
const FOR_EVER: u64 = 1_000_000;

/// Interrupts of both CPUs ask for frames of the last whole block. That of CPU 1 is held up at its call with the second
/// number. That of CPU 0 is interrupted at its call with the first number, by an interrupt that asks too. Returns how
/// many calls each of the first two made, and whether the last one got its frames.
fn ask_on_top(machine: &Hosted, allocator: &Allocator<'_>, at: [u64; 2]) -> ([u64; 2], bool) {
    let [asked, through, found] = [const { AtomicBool::new(false) }; 3];
    let ask = || {
        let got = allocator.alloc_raw(ALL, order(3));
        got.map(|frame| allocator.free_raw(frame, order(3)).unwrap()).is_ok()
    };
    let on_top = || found.store(ask(), Ordering::SeqCst);
    let hold_up = || {
        asked.store(true, Ordering::SeqCst);
        let turns = machine.spin_turns() + FOR_EVER;
        // An interrupt that waits for what is below it waits for ever.
        let is_stuck = || machine.spin_turns() > turns;
        within(Duration::from_secs(10), || through.load(Ordering::SeqCst) || is_stuck());
        if is_stuck() {
            std::process::abort();
        }
    };
    let interrupted = |number: usize, handler: &mut dyn FnMut()| {
        machine.interrupt(Context::SoftInterrupt, || {
            let plan = InterruptPlan::Nth(at[number]);
            machine.interrupt_at_calls(plan, Context::HardInterrupt, handler, ask).events
        })
    };
    let calls = machine.spawn_cpus(2, |cpu| {
        if cpu == CpuId(1) {
            let calls = interrupted(1, &mut || hold_up());
            asked.store(true, Ordering::SeqCst);
            return calls;
        }
        within(Duration::from_secs(10), || asked.load(Ordering::SeqCst));
        let calls = interrupted(0, &mut || on_top());
        through.store(true, Ordering::SeqCst);
        calls
    });
    ([calls[0], calls[1]], found.into_inner())
}

/// An interrupt comes while the one below it has the lock of a pool. It takes the last whole block out of another pool,
/// finds that another CPU has locked the shard, and puts the block back without waiting for what is below it.
#[test]
fn a_block_goes_back_to_its_pool_while_another_is_locked_below() {
    let ranges = vec![Range::new(0, 14 * MIB), Range::new(64 * MIB, 14 * MIB)];
    let machine = HostedConfig::new(MIB).with_ranges(ranges).with_cpus(2).build().unwrap();
    machine.run_on(CpuId(0), || {
        let allocator =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let whole: Vec<Frame> = std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::BLOCK).ok()).collect();
        let rest: Vec<Frame> = std::iter::from_fn(|| allocator.alloc_raw(ALL, Order::FRAME).ok()).collect();
        let last = *whole.iter().max().unwrap();
        allocator.free_raw(last, Order::BLOCK).unwrap();
        let (mut at, mut most, mut refused) = ([0, 0], [0, 0], 0);
        while at[1] <= most[1] {
            machine.spawn_cpus(2, |_| allocator.lists().drain_local());
            // The block is whole again.
            assert_eq!(allocator.alloc_raw(ALL, Order::BLOCK), Ok(last));
            allocator.free_raw(last, Order::BLOCK).unwrap();
            allocator.lists().drain_local();
            let (calls, found) = ask_on_top(&machine, &allocator, at);
            most = [most[0].max(calls[0]), most[1].max(calls[1])];
            refused += u64::from(!found);
            at = if at[0] < most[0] { [at[0] + 1, at[1]] } else { [0, at[1] + 1] };
        }
        println!("up to {most:?} calls, {refused} found nothing");
        machine.spawn_cpus(2, |_| allocator.lists().drain_local());
        whole.iter().filter(|&&at| at != last).for_each(|&at| allocator.free_raw(at, Order::BLOCK).unwrap());
        allocator.free_bulk_raw(Order::FRAME, &rest).unwrap();
        allocator.lists().drain_local();
        allocator.validate().unwrap();
    });
}

/// Both calls may have to wait for locks of blocks.
#[test]
fn an_interrupt_gets_no_exact_range() {
    with_allocator(HostedConfig::new(64 * MIB), |machine, allocator| {
        let free = FrameRange::new(Frame(20 * 512 + 100), 600);
        for context in [Context::SoftInterrupt, Context::HardInterrupt] {
            machine.interrupt(context, || {
                let frames = |run: quire::page_alloc::FrameRun| run.into_raw();
                assert_eq!(allocator.alloc_at(free).map(frames), Err(AllocError::OutOfMemory));
                for count in [3, 700] {
                    assert_eq!(allocator.alloc_exact(ALL, count).map(frames), Err(AllocError::OutOfMemory));
                }
            });
        }
    });
}

/// With interrupts off around each visit to the store, an interrupt on top of another one finds no lock of its own CPU
/// held, and is served.
#[test]
fn interrupts_that_visit_the_store_keep_others_out() {
    for lists in [ListGuard::IrqOff, ListGuard::TaskOnly] {
        let machine = HostedConfig::new(64 * MIB).build().unwrap();
        machine.run_on(CpuId(0), || {
            let config = AllocatorConfig { lists, ..AllocatorConfig::default() };
            let allocator = hosted::raw::page_allocator(&machine, &ranges_of(&machine), config).unwrap();
            let pair = || {
                let frame = allocator.alloc_raw(Gfp::ATOMIC, Order::FRAME);
                allocator.free_raw(frame.unwrap(), Order::FRAME).unwrap();
            };
            let pairs = || (0..20).for_each(|_| pair());
            machine.interrupt(Context::SoftInterrupt, || {
                let every = InterruptPlan::Every(1);
                let on_top = machine.interrupt_at_calls(every, Context::HardInterrupt, pair, pairs);
                assert!(on_top.delivered > 0, "{lists:?}");
            });
        });
    }
}
