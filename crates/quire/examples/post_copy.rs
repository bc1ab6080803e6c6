//! Post-copy: a guest runs here before its memory has come, and each page comes when it is touched.
//!
//! Two CPUs: one runs the guest, the other answers its faults with pages from the machine that the guest came from.
//!
//! `cargo run -p quire-mm --example post_copy`

// Compiled for the hosted machine already, which saves this example the time. A kernel has no such line.
use oracle as _;

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::error::UserfaultError;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::vm::{
    Access, AnswerMode, MapRequest, Mm, Userfault, UserfaultChanges, UserfaultEvent, UserfaultModes,
};

const BYTES: u64 = 32 << 20;
const PAGES: u64 = 64;

/// The memory of the guest on the machine that it came from: each page is full of its own number.
fn page_of_source(page: u64) -> [u8; 4096] {
    [page as u8; 4096]
}

/// The guest reads a byte of every third page. A fault sleeps until the page has come.
fn guest(machine: &Hosted, mm: &Mm<'_, Hosted>, at: VirtAddr) {
    mm.switch_in();
    for page in (0..PAGES).step_by(3) {
        let (addr, mut byte) = (VirtAddr(at.0 + page * 4096 + 100), [0]);
        while machine.read(addr, &mut byte).is_err() {
            mm.fault(addr, Access::Read).expect("the handler answers");
        }
        assert_eq!(u64::from(byte[0]), page);
    }
    mm.switch_out();
}

/// Copies one page of the source, unless it is there already, and wakes the task that waits for it.
fn bring(mm: &Mm<'_, Hosted>, at: VirtAddr, page: u64) -> Result<(), UserfaultError> {
    let contents = page_of_source(page);
    let addr = VirtAddr(at.0 + page * 4096);
    let answer = mm.userfault_copy(addr, 4096, AnswerMode::WAKE, |_, bytes| *bytes = contents);
    match answer.all() {
        // The page came while its fault was on its way: wake the task that waits.
        Err(UserfaultError::Exists) => mm.userfault_wake(addr, 4096).all().map(drop),
        other => other.map(drop),
    }
}

/// Answers faults first, and brings the other pages meanwhile, until all have come.
fn migrate(
    handler: &Userfault<'_, Hosted>,
    mm: &Mm<'_, Hosted>,
    at: VirtAddr,
    faults: &AtomicU64,
) -> Result<(), UserfaultError> {
    let mut next = 0;
    while next < PAGES {
        match handler.next_event().map(|event| event.keep()) {
            Some(UserfaultEvent::Fault(fault)) => {
                faults.fetch_add(1, Ordering::Relaxed);
                bring(mm, at, (fault.addr.0 - at.0) / 4096)?;
            }
            _ => {
                bring(mm, at, next)?;
                next += 1;
            }
        }
    }
    // From here on no page is missing, and no fault waits.
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine = HostedConfig::new(BYTES).with_cpus(2).build()?;
    machine.run_on(CpuId(0), || {
        let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / 4096), node: 0, zeroed: true };
        // SAFETY: invariant 1: nothing else uses the memory of this machine.
        let manager = unsafe { MemoryManager::new(&machine, &[memory], &Config::default()) }?;
        let mm = manager.new_mm()?;
        let prot = Protection::READ | Protection::WRITE;
        let at = mm.mmap(&MapRequest { len: PAGES * 4096, prot, ..MapRequest::default() })?;

        // A task that touches a missing page of this range waits for the handler.
        let handler = manager.userfault(UserfaultChanges::NONE)?;
        mm.userfault_register(&handler, at, PAGES * 4096, UserfaultModes::MISSING)?;

        let faults = AtomicU64::new(0);
        machine.spawn_cpus(2, |cpu| match cpu {
            CpuId(0) => guest(&machine, &mm, at),
            _ => migrate(&handler, &mm, at, &faults).expect("memory for all pages"),
        });
        assert_eq!(mm.rss().anon, PAGES);
        println!(
            "{} of {PAGES} pages came because the guest waited for them",
            faults.load(Ordering::Relaxed)
        );

        // All memory is here: the guest is an ordinary one now.
        mm.userfault_unregister(at, PAGES * 4096)?;
        mm.exit();
        Ok(())
    })
}
