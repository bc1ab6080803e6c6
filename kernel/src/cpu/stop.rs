//! How a CPU that panics stops the others, and learns what they were doing.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quire::cpu::CpuId;

use super::apic::{self, Delivery};
use super::area::{self, MAX_CPUS};
use super::ipi;
use super::registers::Registers;
use crate::time;

/// How long a CPU may take to stop.
const PATIENCE: u64 = time::SECOND / 10;

/// No CPU runs on after an interrupt that cannot be masked.
static WANTED: AtomicBool = AtomicBool::new(false);

/// Where a CPU was when it stopped: its instruction, stack and frame pointers. All zero until then.
struct Place([AtomicU64; 3]);

static PLACES: [Place; MAX_CPUS] = [const { Place([const { AtomicU64::new(0) }; 3]) }; MAX_CPUS];

/// Whether the CPU that got an interrupt that cannot be masked is the first, and so the one that panics: such an
/// interrupt comes from outside, to all CPUs, or from a CPU that panics already.
pub fn is_first_nmi() -> bool {
    !WANTED.swap(true, Ordering::AcqRel)
}

/// Stops the running CPU for ever.
pub fn stop(registers: &Registers) -> ! {
    let Place([rip, rsp, rbp]) = &PLACES[area::cpu_id().index()];
    rsp.store(registers.rsp, Ordering::Relaxed);
    rbp.store(registers.rbp, Ordering::Relaxed);
    rip.store(registers.rip, Ordering::Release);
    wait_to_be_stopped()
}

/// Does nothing for ever, with interrupts off.
pub fn wait_to_be_stopped() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}

/// Stops all other CPUs, and passes each with its instruction, stack and frame pointers; zeroes for a CPU that did
/// not answer.
pub fn stop_others(mut show: impl FnMut(CpuId, [u64; 3])) {
    WANTED.store(true, Ordering::Release);
    if !apic::is_mapped() {
        return;
    }
    for cpu in ipi::others().iter() {
        ipi::send(cpu, Delivery::Nmi);
        let Place(words) = &PLACES[cpu.index()];
        let end = time::now_ns() + PATIENCE;
        while words[0].load(Ordering::Acquire) == 0 && time::now_ns() < end {
            core::hint::spin_loop();
        }
        show(cpu, [0, 1, 2].map(|word| words[word].load(Ordering::Relaxed)));
    }
}
