//! How a run ended, from the kernel's last words and QEMU's status.

use std::process::ExitStatus;

/// The exit code when the kernel failed: a panic, a leak, or structures that contradict each other.
const KERNEL_FAILED: u8 = 123;
/// The exit code when the kernel could not be run to its end.
pub(super) const FAILED: u8 = 125;
/// The exit code when the time ran out, as of `timeout`.
pub(super) const TIMED_OUT: u8 = 124;

/// The last line of the kernel's log says how the run ended.
const PREFIX: &str = "[quire] end: ";

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The program exited with this status.
    Exited(u8),
    /// This signal ended the program.
    Killed(u8),
    /// The program was not started; the name of the error, if the kernel said it.
    NotStarted(Option<String>),
    /// The kernel failed: a panic, a leak, or structures that contradict each other.
    KernelFailed,
    /// QEMU ended before the kernel said anything about it.
    Unsaid,
}

impl End {
    /// The end of a run.
    pub(super) fn of(last_line: Option<&str>, qemu: ExitStatus) -> End {
        last_line.and_then(End::said).unwrap_or_else(|| End::by_status(qemu.code()))
    }

    /// Whether a line of the log says how the run ended.
    pub(super) fn is_said_by(line: &str) -> bool {
        line.starts_with(PREFIX)
    }

    fn said(line: &str) -> Option<End> {
        let words: Vec<&str> = line.strip_prefix(PREFIX)?.split_whitespace().collect();
        match words[..] {
            ["exited", status] => status.parse().ok().map(End::Exited),
            ["killed", signal] => signal.parse().ok().map(End::Killed),
            ["not", "started"] => Some(End::NotStarted(None)),
            ["not", "started", error] => Some(End::NotStarted(Some(error.to_owned()))),
            ["failed"] => Some(End::KernelFailed),
            _ => None,
        }
    }

    /// From the status alone, which has a value of the device `isa-debug-exit` if it is odd. 1 is QEMU's own.
    fn by_status(status: Option<i32>) -> End {
        match status {
            Some(status) if status > 1 && status & 1 == 1 => match (status >> 1) as u8 {
                0x7f => End::KernelFailed,
                0x7e => End::NotStarted(None),
                value @ 0x41.. => End::Killed(value - 0x41),
                value => End::Exited(value - 1),
            },
            _ => End::Unsaid,
        }
    }

    /// The exit code of `quire boot`, as of a shell and of `env`.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            End::Exited(status) => *status,
            End::Killed(signal) => signal.saturating_add(128),
            End::NotStarted(Some(error)) if error == "ENOENT" => 127,
            End::NotStarted(_) => 126,
            End::KernelFailed => KERNEL_FAILED,
            End::Unsaid => FAILED,
        }
    }
}

#[cfg(test)]
mod tests;
