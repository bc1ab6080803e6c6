//! What the tests of the library share: machines, and the library's view of their memory.
#![allow(dead_code, unreachable_pub)]

use hosted::{FaultCause, Hosted, HostedConfig};
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::error::FaultError;
use quire::page_alloc::{AllocatorConfig, MemoryRange, PageAllocator};
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
