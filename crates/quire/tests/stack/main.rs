//! How much stack the library needs. A kernel's stacks are small, and one that overflows overwrites what is below it.
//!
//! `cargo test -p quire-mm-tests --release --test stack -- --nocapture` prints the figures that
//! [`MemoryManager::new`] names.

mod machine;
mod paint;

use machine::{BYTES, Machine};
use paint::{on_large_stack, stack_of};
use quire::addr::{Frame, FrameRange};
use quire::arch::Protection;
use quire::limits::START_STACK_BYTES;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::vm::{Access, Advice, MapRequest, Mm, Remap};

/// Bytes that each verb may need. Builds without optimisation keep more copies of values.
const VERB: usize = if cfg!(debug_assertions) { 40 << 10 } else { 12 << 10 };

fn manager(machine: &Machine) -> MemoryManager<'_, Machine> {
    let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / 4096), node: 0, zeroed: true };
    // SAFETY: nothing else uses the memory of this machine.
    unsafe { MemoryManager::new(machine, &[memory], &Config::default()) }.expect("64 MiB suffice")
}

#[test]
fn a_manager_starts_on_a_small_stack() {
    on_large_stack(|| {
        let machine = Machine::new();
        let (size, needed) = stack_of(|| size_of_val(&std::hint::black_box(manager(&machine))));
        println!("start-up: {needed} bytes of stack, {size} of them the manager");
        assert!(size <= 2048, "the manager is a value of {size} bytes");
        assert!(needed <= START_STACK_BYTES, "start-up needs {needed} bytes of stack");
    });
}

#[test]
fn verbs_run_on_a_small_stack() {
    on_large_stack(|| {
        let machine = Machine::new();
        let manager = manager(&machine);
        let mut most = 0;
        let mut note = |verb: &str, needed: usize| {
            println!("{verb}: {needed} bytes of stack");
            most = most.max(needed);
        };
        let (mm, needed) = stack_of(|| manager.new_mm().expect("memory is free"));
        note("new_mm", needed);
        use_mm(&mm, &mut note);
        note("exit", stack_of(|| mm.exit()).1);
        note("reclaim", stack_of(|| manager.reclaim()).1);
        note("validate", stack_of(|| manager.validate().expect("a consistent manager")).1);
        assert!(most <= VERB, "a verb needs {most} bytes of stack");
    });
}

fn use_mm(mm: &Mm<'_, Machine>, note: &mut impl FnMut(&str, usize)) {
    const LEN: u64 = 8 << 20;
    let prot = Protection::READ | Protection::WRITE;
    let request = MapRequest { len: LEN, prot, ..MapRequest::default() };
    note("switch_in", stack_of(|| mm.switch_in()).1);
    let (at, needed) = stack_of(|| mm.mmap(&request).expect("addresses are free"));
    note("mmap", needed);
    note("fault", stack_of(|| mm.fault(at, Access::Write).expect("a mapped page")).1);
    note("madvise: populate", stack_of(|| mm.madvise(at, LEN, Advice::PopulateWrite).expect("memory")).1);
    let (child, needed) = stack_of(|| mm.fork().expect("memory is free"));
    note("fork", needed);
    note("fault: copy", stack_of(|| mm.fault(at, Access::Write).expect("a mapped page")).1);
    note("exit: child", stack_of(|| child.exit()).1);
    note("mprotect", stack_of(|| mm.mprotect(at, LEN / 2, Protection::READ).expect("a mapping")).1);
    note("madvise: collapse", stack_of(|| mm.madvise(at, LEN / 2, Advice::Collapse)).1);
    let to = stack_of(|| mm.mremap(at, LEN / 2, LEN, Remap::MayMove).expect("addresses are free"));
    note("mremap", to.1);
    note("munmap: a page", stack_of(|| mm.munmap(to.0, 4096).expect("a mapping")).1);
    note(
        "madvise: dontneed",
        stack_of(|| mm.madvise(at.add(LEN / 2), LEN / 2, Advice::DontNeed).expect("a mapping")).1,
    );
    note("munmap", stack_of(|| mm.munmap(to.0, LEN).expect("a mapping")).1);
}
