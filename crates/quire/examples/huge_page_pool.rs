//! A pool of huge pages: enlarged at run time, mapped, and given back.
//!
//! `cargo run -p quire-mm --example huge_page_pool`

// Compiled for the hosted machine already, which saves this example the time. A kernel has no such line.
use oracle as _;

use hosted::HostedConfig;
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::hugetlb::HugeSize;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::page_alloc::NodeSet;
use quire::vm::{Access, MapRequest};

const BYTES: u64 = 64 << 20;
const HUGE: HugeSize = HugeSize::Size2M;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = HostedConfig::new(BYTES).build()?;
    machine.run_on(CpuId(0), || {
        let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / 4096), node: 0, zeroed: true };
        // SAFETY: invariant 1: nothing else uses the memory of this machine.
        let manager = unsafe { MemoryManager::new(&machine, &[memory], &Config::default()) }?;

        // `MemoryManager::resize_huge` moves what is in the way elsewhere, so it succeeds long after start-up;
        // `HugePools::resize` takes only memory that is free in such pieces.
        let resized = manager.resize_huge(HUGE, NodeSet::ALL, 4);
        assert_eq!((resized.after, resized.stopped), (4, None));

        // A mapping reserves its pages when it is made, so a fault in it cannot fail for want of one.
        let mm = manager.new_mm()?;
        mm.switch_in();
        let prot = Protection::READ | Protection::WRITE;
        let request = MapRequest { len: 3 * HUGE.bytes(), prot, huge: Some(HUGE), ..MapRequest::default() };
        let at = mm.mmap(&request)?;
        assert_eq!(manager.huge_pools().info(manager.pages(), HUGE).reserved, 3);
        assert_eq!(mm.mmap(&request), Err(MmError::NoMemory), "one page is left");

        // Without a reservation a fault may find the pool empty.
        let more = mm.mmap(&MapRequest { noreserve: true, ..request })?;
        mm.fault(more, Access::Write)?;
        let next = VirtAddr(more.0 + HUGE.bytes());
        assert_eq!(mm.fault(next, Access::Write).err(), Some(FaultError::NoHugePage));

        mm.fault(at, Access::Write)?;
        assert!(machine.write(at, b"one leaf of 2 MiB maps this").is_ok());
        assert_eq!(mm.rss().huge, 2 * 512);

        // What is in use stays in the pool until it is unmapped.
        mm.exit();
        let resized = manager.resize_huge(HUGE, NodeSet::ALL, 0);
        assert_eq!(resized.after, 0);
        Ok(())
    })
}
