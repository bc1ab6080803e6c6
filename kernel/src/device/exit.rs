//! Stops QEMU, by its device `isa-debug-exit`, with a status of our own.

use core::fmt;

use x86_64::instructions::port::Port;

use super::log::log;
use crate::errno::Errno;

/// The device's port; `kernel/run` puts it there.
const PORT: u16 = 0xf4;

/// How a run ended. QEMU exits with `value << 1 | 1`, of which a shell sees 8 bits; `kernel/run` translates back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The program exited with this status, of which 6 bits are passed on.
    Exited(u8),
    /// This signal ended the program.
    Killed(u8),
    /// The program could not be started.
    NotStarted(Errno),
    /// The kernel failed: a panic, or a leak.
    KernelFailed,
}

impl Outcome {
    fn value(self) -> u8 {
        match self {
            // Not 0: QEMU itself exits with 1 if it cannot start.
            Self::Exited(status) => 0x01 + (status & 0x3f),
            Self::Killed(signal) => 0x41 + (signal & 0x1f),
            Self::NotStarted(_) => 0x7e,
            Self::KernelFailed => 0x7f,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exited {status}"),
            Self::Killed(signal) => write!(f, "killed {signal}"),
            Self::NotStarted(errno) => write!(f, "not started {errno}"),
            Self::KernelFailed => f.write_str("failed"),
        }
    }
}

/// Ends the machine. The last line of the log says how, since QEMU's status has fewer bits.
pub fn exit(outcome: Outcome) -> ! {
    log!("end: {outcome}");
    // SAFETY: X6: a write to this port ends QEMU; without the device it does nothing.
    unsafe { Port::<u32>::new(PORT).write(u32::from(outcome.value())) };
    loop {
        x86_64::instructions::hlt();
    }
}
