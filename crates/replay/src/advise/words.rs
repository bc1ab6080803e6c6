//! Numbers and names as the text shows them.

use std::collections::BTreeSet;

use crate::output::{self, quoted};
use crate::replay::{Part, PartKind, Trial};

use super::ways::base;

/// A number with its thousands apart.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.len();
    let apart = |at: usize| at > 0 && (places - at).is_multiple_of(3);
    digits.chars().enumerate().fold(String::new(), |mut text, (at, digit)| {
        if apart(at) {
            text.push(',');
        }
        text.push(digit);
        text
    })
}

/// Bytes in KiB or MiB.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes < 1 << 20 => format!("{} KiB", bytes >> 10),
        bytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

/// Nanoseconds in the unit that suits them.
pub(super) fn time(ns: f64) -> String {
    output::duration(ns)
}

/// A change in per cent of `before`, with its sign.
pub(super) fn change(before: f64, after: f64) -> String {
    let percent = if before == 0.0 { 0.0 } else { (after - before) / before * 100.0 };
    match percent {
        percent if percent.abs() < 0.05 => "±0 %".to_owned(),
        percent if percent.abs() < 9.95 => format!("{percent:+.1} %"),
        percent => format!("{percent:+.0} %"),
    }
}

/// A share in per cent.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// The mappings of one trace by name.
pub(super) struct Names<'t> {
    trial: &'t Trial,
    files: Vec<&'t str>,
    /// Whether more than one program ran, so that names begin with theirs.
    several: bool,
}

impl<'t> Names<'t> {
    pub(super) fn new(trial: &'t Trial, parts: &[Part]) -> Self {
        let programs: BTreeSet<_> = parts.iter().map(|part| part.key.program).collect();
        Self { trial, files: trial.files(), several: programs.len() > 1 }
    }

    /// The name of the program that a part belongs to.
    pub(super) fn program(&self, part: &Part) -> Option<&'t str> {
        self.trial.names().get(part.key.program?.0 as usize).map(String::as_str)
    }

    /// The file of a part.
    pub(super) fn file(&self, part: &Part) -> Option<&'t str> {
        match part.key.kind {
            PartKind::File(number) => self.files.get(usize::try_from(number).ok()?).copied(),
            _ => None,
        }
    }

    /// What a part is, in one word.
    pub(super) const fn kind(part: &Part) -> &'static str {
        match part.key.kind {
            PartKind::Heap => "heap",
            PartKind::Stack => "stack",
            PartKind::ThreadStacks => "thread-stacks",
            PartKind::Anonymous(_) => "anonymous",
            PartKind::File(_) => "file",
            PartKind::Shared => "shared",
            PartKind::Unknown => "unknown",
        }
    }

    /// A part as prose names it.
    pub(super) fn prose(&self, part: &Part) -> String {
        let place = || format!("at {:#x}, {}", part.address, size(part.bytes));
        let name = match part.key.kind {
            PartKind::Heap => format!("the heap {}", place()),
            PartKind::Stack => "the stack".to_owned(),
            PartKind::ThreadStacks => "stacks of threads".to_owned(),
            PartKind::Anonymous(_) => format!("anonymous memory {}", place()),
            PartKind::File(_) => format!("data of {}", quoted(base(self.file(part).unwrap_or("?")))),
            PartKind::Shared => "shared memory".to_owned(),
            PartKind::Unknown => "unknown mappings".to_owned(),
        };
        match self.program(part).filter(|_| self.several) {
            Some(program) => format!("{}: {name}", quoted(program)),
            None => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0, 999, 1000, 41_700, 1_234_567].map(count),
            ["0", "999", "1,000", "41,700", "1,234,567"]
        );
        assert_eq!([0, 4096, 1 << 20, 189_000_000].map(size), ["0 KiB", "4 KiB", "1.0 MiB", "180.2 MiB"]);
        assert_eq!(
            [(100.0, 7.0), (1000.0, 1004.0), (0.0, 5.0)].map(|(a, b)| change(a, b)),
            ["-93 %", "+0.4 %", "±0 %"]
        );
        assert_eq!([0.0, 0.0091, 0.912].map(percent), ["0.0 %", "0.9 %", "91 %"]);
    }
}
