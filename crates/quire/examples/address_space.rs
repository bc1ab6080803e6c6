//! An address space from scratch, as `execve` builds one: the program's file, its heap, its stack; then a child.
//!
//! `cargo run -p quire-mm --example address_space`

// Compiled for the hosted machine already, which saves this example the time. A kernel has no such line.
use oracle as _;

use hosted::{FaultCause, Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::platform::FileId;
use quire::vm::{Access, Backing, MapRequest, Mm, Placement, Sharing};

const BYTES: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

/// What a kernel does when the processor raises a page fault in a program: it brings the page in, and the program repeats the
/// access. An error is a signal to the program.
fn handle(
    mm: &Mm<'_, Hosted>,
    access: Access,
    mut attempt: impl FnMut() -> Result<(), hosted::PageFault>,
) -> Result<(), FaultError> {
    while let Err(fault) = attempt() {
        assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection));
        mm.fault(fault.addr, access)?;
    }
    Ok(())
}

fn store(machine: &Hosted, mm: &Mm<'_, Hosted>, at: VirtAddr, bytes: &[u8]) -> Result<(), FaultError> {
    handle(mm, Access::Write, || machine.write(at, bytes))
}

fn load(machine: &Hosted, mm: &Mm<'_, Hosted>, at: VirtAddr, bytes: &mut [u8]) -> Result<(), FaultError> {
    handle(mm, Access::Read, || machine.read(at, bytes))
}

/// Memory that parent and child both map shared: each sees what the other stores. The parent runs when this is called, and the
/// child afterwards.
fn share(
    machine: &Hosted,
    manager: &MemoryManager<'_, Hosted>,
    parent: &Mm<'_, Hosted>,
    child: &Mm<'_, Hosted>,
) -> Result<(), Box<dyn std::error::Error>> {
    let shared = manager.shmem(MIB)?;
    let request = MapRequest {
        len: MIB,
        prot: Protection::READ | Protection::WRITE,
        sharing: Sharing::Shared,
        backing: Backing::File { file: &shared, page_offset: 0 },
        ..MapRequest::default()
    };
    let (here, there) = (parent.mmap(&request)?, child.mmap(&request)?);
    store(machine, parent, here, b"for both")?;
    parent.switch_to(child);
    let mut seen = [0; 8];
    load(machine, child, there, &mut seen)?;
    assert_eq!(&seen, b"for both");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = HostedConfig::new(BYTES).build()?;
    // The pager of this machine has files that consist of numbers. A kernel's reads them from a disk.
    let program = FileId(1);
    machine.files().set_size(program, 3 * 4096);
    machine.run_on(CpuId(0), || {
        let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / 4096), node: 0, zeroed: true };
        // SAFETY: invariant 1: nothing else uses the memory of this machine.
        let manager = unsafe { MemoryManager::new(&machine, &[memory], &Config::default()) }?;
        let mm = manager.new_mm()?;
        mm.switch_in();

        // The program's text and data: a private mapping of its file, at the address that it is linked for.
        let file = manager.open(program)?;
        let text = mm.mmap(&MapRequest {
            addr: VirtAddr(0x40_0000),
            len: 3 * 4096,
            prot: Protection::READ | Protection::WRITE | Protection::EXEC,
            placement: Placement::FixedNoReplace,
            backing: Backing::File { file: &file, page_offset: 0 },
            ..MapRequest::default()
        })?;
        // Its code must not change.
        mm.mprotect(text, 2 * 4096, Protection::READ | Protection::EXEC)?;

        // Its heap and its stack. The stack grows down on faults below it.
        let prot = Protection::READ | Protection::WRITE;
        let heap = mm.mmap(&MapRequest { len: 4 * MIB, prot, ..MapRequest::default() })?;
        let stack =
            mm.mmap(&MapRequest { len: 64 << 10, prot, grows_down: true, ..MapRequest::default() })?;

        // The program runs: it fetches its code, and stores to its data, its heap and its stack.
        handle(&mm, Access::Exec, || machine.fetch(text).map(drop))?;
        store(&machine, &mm, VirtAddr(text.0 + 2 * 4096), b"data")?;
        store(&machine, &mm, heap, b"parent")?;
        store(&machine, &mm, VirtAddr(stack.0 - 8), &7_u64.to_le_bytes())?;
        assert_eq!(store(&machine, &mm, text, b"code"), Err(FaultError::Protection));

        // `fork`: the child shares every page until one of the two stores to it.
        let child = mm.fork()?;
        mm.switch_to(&child);
        store(&machine, &child, heap, b"child!")?;
        child.switch_to(&mm);
        let mut seen = [0; 6];
        load(&machine, &mm, heap, &mut seen)?;
        assert_eq!(&seen, b"parent");

        share(&machine, &manager, &mm, &child)?;
        mm.munmap(heap, 4 * MIB)?;
        child.exit();
        mm.exit();
        assert_eq!(manager.meminfo().anon, 0);
        Ok(())
    })
}
