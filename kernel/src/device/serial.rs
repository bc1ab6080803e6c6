//! The first serial port, a 16550, for the kernel's messages and the program's output.

use core::fmt;

use x86_64::instructions::port::Port;

const COM1: u16 = 0x3f8;
/// Line status: the transmitter can take a byte.
const CAN_SEND: u8 = 1 << 5;

/// The port. QEMU's takes bytes without any set-up.
pub struct Serial;

impl Serial {
    /// Sends bytes, each once the port can take it.
    pub fn send(&self, bytes: &[u8]) {
        let (mut data, mut status) = (Port::<u8>::new(COM1), Port::<u8>::new(COM1 + 5));
        for &byte in bytes {
            // SAFETY: the ports of a 16550; reading the status and sending a byte touch no memory.
            unsafe {
                while status.read() & CAN_SEND == 0 {}
                data.write(byte);
            }
        }
    }
}

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.send(text.as_bytes());
        Ok(())
    }
}

pub(crate) use super::log::log;
