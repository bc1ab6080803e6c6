//! Character devices by number, and their files in `/dev`.

use alloc::boxed::Box;

use super::memory_device::{Full, Null, Zero};
use super::open::{File, Opening};
use super::random::Random;
use super::tty::{self, TtyFile};
use crate::errno::Errno;
use crate::userfault::UserfaultDevice;

/// The number of a device from its two parts, as in `st_rdev`.
pub const fn number(major: u64, minor: u64) -> u64 {
    (major & 0xfff) << 8 | minor & 0xff | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

/// The names in `/dev`, with their numbers and modes.
pub const NAMES: [(&str, u64, u32); 9] = [
    ("null", number(1, 3), 0o666),
    ("zero", number(1, 5), 0o666),
    ("full", number(1, 7), 0o666),
    ("random", number(1, 8), 0o666),
    ("urandom", number(1, 9), 0o666),
    ("userfaultfd", number(10, 126), 0o600),
    ("tty", TTY, 0o666),
    ("console", CONSOLE, 0o600),
    ("ttyS0", SERIAL, 0o600),
];

const TTY: u64 = number(5, 0);
const CONSOLE: u64 = number(5, 1);
const SERIAL: u64 = number(4, 64);

/// Opens the character device with this number.
///
/// # Errors
/// [`Errno::ENXIO`] if there is none.
pub fn open(device: u64, opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
    Ok(match NAMES.iter().find(|(_, number, _)| *number == device).map(|(name, ..)| *name) {
        Some("null") => Box::new(Null),
        Some("zero") => Box::new(Zero),
        Some("full") => Box::new(Full),
        Some("random" | "urandom") => Box::new(Random),
        Some("userfaultfd") => Box::new(UserfaultDevice),
        Some("tty") => Box::new(tty::open_controlling()?),
        Some(_) => Box::new(TtyFile::open(opening)),
        None => return Err(Errno::ENXIO),
    })
}
