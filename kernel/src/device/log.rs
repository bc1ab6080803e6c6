//! The kernel's log: lines that begin with `[quire]`.
//!
//! They go to QEMU's debug console, port 0xe9, if the machine has one, so that the terminal is the program's alone.
//! Otherwise they go to the first serial port.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::interrupts::without_interrupts;
use x86_64::instructions::port::Port;

use super::serial::Serial;

const DEBUG_CONSOLE: u16 = 0xe9;
/// What the console's port reads as.
const PRESENT: u8 = 0xe9;

/// One line at a time. A CPU that panics does not wait for ever.
static BUSY: AtomicBool = AtomicBool::new(false);
const PATIENCE: u32 = 10_000_000;

struct Log {
    has_console: bool,
}

impl Write for Log {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if !self.has_console {
            return Serial.write_str(text);
        }
        for &byte in text.as_bytes() {
            // SAFETY: X6: a write to the console touches no memory.
            unsafe { Port::<u8>::new(DEBUG_CONSOLE).write(byte) };
        }
        Ok(())
    }
}

/// Prints a line.
pub fn print(line: fmt::Arguments<'_>) {
    without_interrupts(|| {
        let mut patience = PATIENCE;
        while BUSY.swap(true, Ordering::Acquire) && patience > 0 {
            patience -= 1;
            core::hint::spin_loop();
        }
        // SAFETY: X6: this reads the port; without the console it reads as all ones.
        let has_console = unsafe { Port::<u8>::new(DEBUG_CONSOLE).read() } == PRESENT;
        // Neither device can fail.
        let _ = writeln!(Log { has_console }, "[quire] {line}");
        BUSY.store(false, Ordering::Release);
    });
}

/// Prints a line of the kernel's own.
macro_rules! log {
    ($($part:tt)*) => {
        $crate::device::log::print(format_args!($($part)*))
    };
}
pub(crate) use log;
