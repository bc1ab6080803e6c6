//! The clock that runs while the machine is off: the CMOS real-time clock (MC146818).

use x86_64::instructions::port::Port;

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;
const STATUS_A: u8 = 0x0a;
const STATUS_B: u8 = 0x0b;
/// PC firmware keeps the century here, in the same form as the year.
const CENTURY: u8 = 0x32;
const UPDATING: u8 = 1 << 7;
const BINARY: u8 = 1 << 2;
const HOURS_24: u8 = 1 << 1;
const AFTERNOON: u8 = 1 << 7;

/// Seconds, minutes, hours, day, month, year and century, as they are stored.
type Fields = [u8; 7];
const REGISTERS: Fields = [0, 2, 4, 7, 8, 9, CENTURY];

fn read(register: u8) -> u8 {
    // SAFETY: X6: these ports read one byte of the clock.
    unsafe {
        Port::<u8>::new(INDEX).write(register);
        Port::<u8>::new(DATA).read()
    }
}

/// Two readings that agree were not interrupted by an update.
fn read_all() -> Option<Fields> {
    let mut before: Option<Fields> = None;
    for _ in 0..100_000 {
        if read(STATUS_A) & UPDATING != 0 {
            continue;
        }
        let now = REGISTERS.map(read);
        if before == Some(now) {
            return before;
        }
        before = Some(now);
    }
    None
}

/// The time in seconds since 1970, if the machine has a clock and it shows one.
pub fn seconds() -> Option<u64> {
    if read(STATUS_A) == u8::MAX {
        return None;
    }
    let fields = read_all()?;
    let status = read(STATUS_B);
    let number = |byte: u8| if status & BINARY != 0 { byte } else { (byte >> 4) * 10 + (byte & 15) };
    let afternoon = status & HOURS_24 == 0 && fields[2] & AFTERNOON != 0;
    let mut hour = u64::from(number(fields[2] & !AFTERNOON));
    if status & HOURS_24 == 0 {
        hour = hour % 12 + if afternoon { 12 } else { 0 };
    }
    let [second, minute, _, day, month, year, century] = fields.map(|byte| u64::from(number(byte)));
    let year = year + if (19..=21).contains(&century) { century * 100 } else { 2000 };
    let valid =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    valid.then(|| ((days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Days from 1970 to a date of the Gregorian calendar. Counts years from March, so that leap days come last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let in_year = (153 * month + 2) / 5 + day - 1;
    let to_march_1970 = 719_468;
    365 * year + year / 4 - year / 100 + year / 400 + in_year - to_march_1970
}
