//! `/proc/PID/limits`.

use core::fmt::{self, Write};

use linux_raw_sys::general as abi;

/// Name, number and unit, in the file's order.
const ROWS: [(&str, u32, &str); 16] = [
    ("Max cpu time", abi::RLIMIT_CPU, "seconds"),
    ("Max file size", abi::RLIMIT_FSIZE, "bytes"),
    ("Max data size", abi::RLIMIT_DATA, "bytes"),
    ("Max stack size", abi::RLIMIT_STACK, "bytes"),
    ("Max core file size", abi::RLIMIT_CORE, "bytes"),
    ("Max resident set", abi::RLIMIT_RSS, "bytes"),
    ("Max processes", abi::RLIMIT_NPROC, "processes"),
    ("Max open files", abi::RLIMIT_NOFILE, "files"),
    ("Max locked memory", abi::RLIMIT_MEMLOCK, "bytes"),
    ("Max address space", abi::RLIMIT_AS, "bytes"),
    ("Max file locks", abi::RLIMIT_LOCKS, "locks"),
    ("Max pending signals", abi::RLIMIT_SIGPENDING, "signals"),
    ("Max msgqueue size", abi::RLIMIT_MSGQUEUE, "bytes"),
    ("Max nice priority", abi::RLIMIT_NICE, ""),
    ("Max realtime priority", abi::RLIMIT_RTPRIO, ""),
    ("Max realtime timeout", abi::RLIMIT_RTTIME, "us"),
];

/// Writes the file. `limit` says the soft and the hard limit of a resource.
pub(super) fn limits(out: &mut dyn Write, limit: impl Fn(u32) -> [u64; 2]) -> fmt::Result {
    writeln!(out, "{:<25} {:<20} {:<20} {:<10}", "Limit", "Soft Limit", "Hard Limit", "Units")?;
    for (name, number, unit) in ROWS {
        write!(out, "{name:<25} ")?;
        for value in limit(number) {
            if value == u64::MAX {
                write!(out, "{:<20} ", "unlimited")?;
            } else {
                write!(out, "{value:<20} ")?;
            }
        }
        writeln!(out, "{unit:<10}")?;
    }
    Ok(())
}
