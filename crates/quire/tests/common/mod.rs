//! What the tests of the library share: machines, and the library's view of their memory.
#![allow(dead_code, unreachable_pub)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hosted::{FaultCause, Hosted, HostedConfig, InterruptPlan};
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::error::FaultError;
use quire::page_alloc::{AllocatorConfig, MemoryRange, PageAllocator};
use quire::platform::Context;
use quire::vm::{Access, Mm};

/// The ranges of a hosted machine as the library wants them.
pub fn ranges_of(machine: &Hosted) -> Vec<MemoryRange> {
    let to_library = |range: &hosted::MemoryRange| MemoryRange {
        frames: FrameRange::new(range.start.frame(), range.bytes / 4096),
        node: range.node,
        zeroed: true,
    };
    machine.ranges().iter().map(to_library).collect()
}

/// A machine with one range and its allocator, for the length of `test`, run as CPU 0.
pub fn with_allocator(config: HostedConfig, test: impl FnOnce(&Hosted, &PageAllocator<'_, Hosted>)) {
    let machine = config.build().expect("the host refused a machine");
    machine.run_on(quire::cpu::CpuId(0), || {
        let allocator = PageAllocator::new(&machine, &ranges_of(&machine), AllocatorConfig::default())
            .expect("no allocator");
        allocator.validate().expect("broken from the start");
        test(&machine, &allocator);
        allocator.drain_local();
        allocator.validate().expect("broken at the end");
    });
}

/// The order with this number.
pub fn order(number: u8) -> Order {
    Order::new(number).expect("no such order")
}

/// The seed of a random test: from `QUIRE_SEED`, or this one.
pub fn seed(default: u64) -> u64 {
    std::env::var("QUIRE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A load by the program, with its faults.
pub fn load(machine: &Hosted, mm: &Mm<'_, Hosted>, addr: u64) -> Result<u64, FaultError> {
    let mut bytes = [0; 8];
    for _ in 0..100 {
        match machine.read(VirtAddr(addr), &mut bytes) {
            Ok(()) => return Ok(u64::from_le_bytes(bytes)),
            Err(fault) => {
                assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
                mm.fault(VirtAddr(addr), Access::Read)?;
            }
        }
    }
    panic!("the load of {addr:#x} faults for ever");
}

/// A store by the program, with its faults.
pub fn store(machine: &Hosted, mm: &Mm<'_, Hosted>, addr: u64, word: u64) -> Result<(), FaultError> {
    for _ in 0..100 {
        match machine.write(VirtAddr(addr), &word.to_le_bytes()) {
            Ok(()) => return Ok(()),
            Err(fault) => {
                assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
                mm.fault(VirtAddr(addr), Access::Write)?;
            }
        }
    }
    panic!("the store to {addr:#x} faults for ever");
}

/// Lets CPU 0 do some work, and holds it up at the `round`-th call of the platform that this makes until CPU 1 has done something
/// else, or waits for CPU 0. How many calls there were, and what CPU 1 found if it did not wait.
pub fn meet<R: Send>(
    machine: &Hosted,
    round: u64,
    work: impl Fn() + Sync,
    other: impl Fn() -> R + Sync,
) -> (u64, Option<R>) {
    const PATIENCE: Duration = Duration::from_millis(40);
    let [asked, through, in_time] = [const { AtomicBool::new(false) }; 3];
    let mut ends = machine.spawn_cpus(2, |cpu| {
        if cpu.0 == 1 {
            while !asked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let found = other();
            through.store(true, Ordering::SeqCst);
            return (0, Some(found));
        }
        let hold_up = || {
            asked.store(true, Ordering::SeqCst);
            let end = Instant::now() + PATIENCE;
            while !through.load(Ordering::SeqCst) && Instant::now() < end {
                std::thread::yield_now();
            }
            in_time.store(through.load(Ordering::SeqCst), Ordering::SeqCst);
        };
        let plan = InterruptPlan::Nth(round);
        let ran = machine.interrupt_at_calls(plan, Context::HardInterrupt, hold_up, &work);
        asked.store(true, Ordering::SeqCst);
        (ran.events, None)
    });
    let found = ends.pop().and_then(|(_, found)| found);
    (ends[0].0, found.filter(|_| in_time.load(Ordering::SeqCst)))
}
