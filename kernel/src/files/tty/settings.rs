//! The settings of a terminal: flags, special characters, and the size of its window.

use linux_raw_sys::general as abi;

use crate::device::serial::Serial;

/// The number of special characters in the kernel's `struct termios`.
pub const CHARACTERS: usize = 19;
/// `ECHOCTL`, which the C library names and the kernel's headers too: control characters are echoed as `^X`.
const ECHO_CONTROL: u32 = abi::ECHOCTL;

/// The settings.
#[derive(Clone, Copy)]
pub struct Settings {
    /// `c_iflag`
    pub input: u32,
    /// `c_oflag`
    pub output: u32,
    /// `c_cflag`
    pub control: u32,
    /// `c_lflag`
    pub local: u32,
    /// `c_line`
    pub discipline: u8,
    /// `c_cc`
    pub characters: [u8; CHARACTERS],
    /// Rows, columns, and the size in pixels.
    pub window: [u16; 4],
}

impl Settings {
    /// As Linux has them for a new terminal, but without ONLCR.
    pub const FIRST: Self = Self {
        input: abi::ICRNL | abi::IXON,
        output: abi::OPOST,
        control: abi::B38400 | abi::CS8 | abi::CREAD | abi::HUPCL,
        local: abi::ISIG
            | abi::ICANON
            | abi::ECHO
            | abi::ECHOE
            | abi::ECHOK
            | abi::ECHOCTL
            | abi::ECHOKE
            | abi::IEXTEN,
        discipline: 0,
        // INTR, QUIT, ERASE, KILL, EOF, TIME, MIN, SWTC, START, STOP, SUSP, EOL, REPRINT, DISCARD, WERASE, LNEXT, EOL2
        characters: [3, 28, 127, 21, 4, 0, 1, 0, 17, 19, 26, 0, 18, 15, 23, 22, 0, 0, 0],
        window: [24, 80, 0, 0],
    };

    /// Whether these bits of `c_iflag` are set.
    pub fn has_input(&self, bits: u32) -> bool {
        self.input & bits == bits
    }

    /// Whether these bits of `c_lflag` are set.
    pub fn has_local(&self, bits: u32) -> bool {
        self.local & bits == bits
    }

    /// Whether input is edited by lines.
    pub fn is_canonical(&self) -> bool {
        self.has_local(abi::ICANON)
    }

    /// Whether a byte is this special character. A character of 0 is switched off.
    pub fn is(&self, byte: u8, index: u32) -> bool {
        let character = self.characters[index as usize];
        character != 0 && character == byte
    }

    /// How many bytes end a read without lines (`VMIN`).
    pub fn least(&self) -> usize {
        usize::from(self.characters[abi::VMIN as usize])
    }

    /// After how many nanoseconds it ends (`VTIME`); 0 for never.
    pub fn patience_ns(&self) -> u64 {
        u64::from(self.characters[abi::VTIME as usize]) * 100_000_000
    }

    /// How long a sleeping reader waits before it looks again, if there is a time at all.
    pub fn reading_patience_ns(&self) -> Option<u64> {
        Some(self.patience_ns()).filter(|ns| *ns > 0 && !self.is_canonical())
    }

    /// Sends output.
    pub fn send(&self, bytes: &[u8]) {
        if self.output & (abi::OPOST | abi::ONLCR) != abi::OPOST | abi::ONLCR {
            return Serial.send(bytes);
        }
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            match line.strip_suffix(b"\n") {
                Some(text) => {
                    Serial.send(text);
                    Serial.send(b"\r\n");
                }
                None => Serial.send(line),
            }
        }
    }

    /// Echoes an input byte.
    pub fn echo(&self, byte: u8) {
        let echoes_line = byte == b'\n' && self.has_local(abi::ECHONL | abi::ICANON);
        if !self.has_local(abi::ECHO) && !echoes_line {
            return;
        }
        if self.is_shown_as_two(byte) {
            self.send(&[b'^', byte ^ 0x40]);
        } else {
            self.send(&[byte]);
        }
    }

    /// Whether an input byte is echoed as `^X`.
    pub fn is_shown_as_two(&self, byte: u8) -> bool {
        self.has_local(ECHO_CONTROL) && (byte < b' ' && byte != b'\n' && byte != b'\t' || byte == 127)
    }

    /// Takes echoed input back.
    pub fn erase(&self, byte: u8) {
        if self.has_local(abi::ECHO | abi::ECHOE) {
            let twice = if self.is_shown_as_two(byte) { 2 } else { 1 };
            (0..twice).for_each(|_| Serial.send(b"\x08 \x08"));
        } else if self.has_local(abi::ECHO) {
            self.echo(self.characters[abi::VERASE as usize]);
        }
    }
}
