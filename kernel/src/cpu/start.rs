//! Starts the other CPUs, one after the other.

use core::sync::atomic::{AtomicUsize, Ordering};

use quire::arch::ProcessorState;
use quire::cpu::CpuId;
use x86_64::instructions::interrupts;

use super::{apic, area, features, ipi, segments, topology, traps, user_mode};
use crate::boot::start_info::BootInfo;
use crate::boot::trampoline::{START_PAGE, Trampoline};
use crate::device::serial::log;
use crate::memory::stacks::KernelStack;
use crate::memory::{kernel_half, manager};
use crate::{idle, selftest, time};

/// How long a CPU may take to arrive: host threads of an emulator may have to wait for each other.
const PATIENCE: u64 = 10 * time::SECOND;

static ARRIVED: AtomicUsize = AtomicUsize::new(1);

/// Prepares the running CPU for traps and programs. Each CPU runs it once.
pub fn prepare(cpu: CpuId) {
    area::install(cpu);
    segments::load();
    traps::load();
    user_mode::enable();
}

/// Starts all CPUs that the firmware names. Not inlined: its locals, a trampoline of a page among them, would
/// stay on the boot stack while the memory manager starts.
#[inline(never)]
pub fn start_others(info: BootInfo) {
    let ids = topology::get().apic_ids();
    if ids.len() == 1 {
        return;
    }
    let Some(mut trampoline) = Trampoline::prepare(info) else {
        return log!("no page below 1 MiB is usable, so one CPU runs");
    };
    for cpu in (1..ids.len() as u32).map(CpuId) {
        // A CPU that was told to start and does not come may come later, and would find another one's values.
        if !start(&mut trampoline, cpu) {
            log!("CPU {} does not start", cpu.0);
            core::mem::forget(trampoline);
            return;
        }
    }
}

/// Starts a CPU and waits for it.
fn start(trampoline: &mut Trampoline, cpu: CpuId) -> bool {
    let Ok(stack) = KernelStack::new() else { return false };
    trampoline.set(stack.end(), entry, u64::from(cpu.0));
    // The stack is the CPU's for ever.
    core::mem::forget(stack);
    let before = ARRIVED.load(Ordering::Acquire);
    // SAFETY: X1: the CPU runs nothing before this, its only start, and the trampoline is its code.
    unsafe { apic::start(topology::get().apic_ids()[cpu.index()], START_PAGE) };
    let end = time::now_ns() + PATIENCE;
    while ARRIVED.load(Ordering::Acquire) == before {
        if time::now_ns() > end {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Where a new CPU enters, with interrupts off, on its own stack.
extern "C" fn entry(cpu: u64) -> ! {
    // From here on no table maps the page that this CPU came from.
    kernel_half::load(kernel_half::root());
    features::enable();
    prepare(CpuId(cpu as u32));
    apic::enable();
    // SAFETY: X7: the kernel runs at privilege level 0.
    let state = unsafe { ProcessorState::read() };
    state.check(manager::paging()).expect("the state of the first CPU");
    ipi::set_online();
    ARRIVED.fetch_add(1, Ordering::Release);
    interrupts::enable();
    selftest::serve();
    idle::become_idle();
    idle::run()
}
