//! The first serial port, a 16550, for the kernel's messages and the program's output.

use core::fmt;

use x86_64::instructions::port::Port;

use crate::cpu::interrupts;

const COM1: u16 = 0x3f8;
/// Its interrupt.
const LINE: u8 = 4;
/// Interrupt enable: a byte was received.
const ON_RECEIVE: u8 = 1;
/// Modem control: the lines that say that a terminal is there, and the one that lets interrupts out.
const READY: u8 = 0b1011;
/// Line status: a byte was received.
const HAS_BYTE: u8 = 1;
/// Line status: the transmitter can take a byte.
const CAN_SEND: u8 = 1 << 5;

/// The port. QEMU's takes bytes without any set-up.
pub struct Serial;

impl Serial {
    /// Sends bytes, each once the port can take it.
    pub fn send(&self, bytes: &[u8]) {
        let (mut data, mut status) = (Port::<u8>::new(COM1), Port::<u8>::new(COM1 + 5));
        for &byte in bytes {
            // SAFETY: X6: the ports of a 16550; reading the status and sending a byte touch no memory.
            unsafe {
                while status.read() & CAN_SEND == 0 {}
                data.write(byte);
            }
        }
    }

    /// The next byte that was received, if there is one.
    pub fn receive(&self) -> Option<u8> {
        // SAFETY: X6: the ports of a 16550; reading a received byte touches no memory.
        unsafe {
            let has_byte = Port::<u8>::new(COM1 + 5).read() & HAS_BYTE != 0;
            has_byte.then(|| Port::<u8>::new(COM1).read())
        }
    }

    /// Calls `handler` whenever bytes were received. It takes them by [`Self::receive`], until there is none. Returns
    /// whether the machine can.
    pub fn on_receive(&self, handler: fn()) -> bool {
        let connected = interrupts::connect_isa(LINE, handler);
        // SAFETY: X6: the ports of a 16550; its interrupts touch no memory.
        unsafe {
            Port::<u8>::new(COM1 + 4).write(READY);
            Port::<u8>::new(COM1 + 1).write(ON_RECEIVE);
        }
        connected
    }
}

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.send(text.as_bytes());
        Ok(())
    }
}

pub(crate) use super::log::log;
