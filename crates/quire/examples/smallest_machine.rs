//! The smallest machine: a manager, one address space, one page.
//!
//! The machine is the hosted one, a process that plays a machine with memory, a processor and an MMU. A kernel has a
//! `Platform` of its own in its place, and its memory map in the place of the range.
//!
//! `cargo run -p quire-mm --example smallest_machine`

// Compiled for the hosted machine already, which saves this example the time. A kernel has no such line.
use oracle as _;

use hosted::HostedConfig;
use quire::addr::{Frame, FrameRange};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::vm::{Access, MapRequest};

const BYTES: u64 = 16 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = HostedConfig::new(BYTES).build()?;
    // From here on, this thread is CPU 0 of the machine.
    machine.run_on(CpuId(0), || {
        let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / 4096), node: 0, zeroed: true };
        // SAFETY: invariant 1: nothing else uses the memory of this machine.
        let manager = unsafe { MemoryManager::new(&machine, &[memory], &Config::default()) }?;

        // A process: an address space that this CPU runs.
        let mm = manager.new_mm()?;
        mm.switch_in();
        let prot = Protection::READ | Protection::WRITE;
        let at = mm.mmap(&MapRequest { len: 4096, prot, ..MapRequest::default() })?;

        // The program stores, and the processor raises a page fault, since nothing is mapped yet.
        assert!(machine.write(at, b"hello").is_err());
        // The kernel's handler brings the page in, and the program's store is repeated.
        mm.fault(at, Access::Write)?;
        assert!(machine.write(at, b"hello").is_ok());
        assert_eq!(mm.rss().anon, 1);

        mm.exit();
        assert_eq!(manager.meminfo().anon, 0);
        Ok(())
    })
}
