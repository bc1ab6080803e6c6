//! A panic prints where and why, with the registers that explain faults, and ends the machine.

use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::registers::control::{Cr0, Cr2, Cr3, Cr4};
use x86_64::registers::read_rip;

use crate::device::exit::{Outcome, exit};
use crate::device::serial::log;

static PANICKED: AtomicBool = AtomicBool::new(false);

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // A panic while a panic is shown is not shown: it might not end.
    if !PANICKED.swap(true, Ordering::Relaxed) {
        log!("{info}");
        log!("rip {:#x} cr2 {:#x} cr3 {:#x}", read_rip(), Cr2::read_raw(), Cr3::read().0.start_address());
        log!("cr0 {:?} cr4 {:?}", Cr0::read(), Cr4::read());
    }
    exit(Outcome::KernelFailed)
}
