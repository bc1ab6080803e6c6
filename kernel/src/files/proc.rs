//! Files whose text is made when they are opened.

use alloc::string::String;
use core::fmt::Write;

use crate::memory::manager::manager;

/// The text of a file, if there is one at this path.
pub fn text(path: &str) -> Option<String> {
    match path {
        "/proc/meminfo" => Some(meminfo()),
        "/proc/vmstat" => Some(vmstat()),
        _ => None,
    }
}

/// Quire has the names and the numbers; the columns are Linux's.
fn meminfo() -> String {
    let mut text = String::new();
    for (name, kib) in manager().meminfo().lines() {
        line(&mut text, name, kib, " kB");
    }
    for (name, number) in manager().huge_lines() {
        line(&mut text, name, number, if name == "Hugetlb" { " kB" } else { "" });
    }
    text
}

fn line(text: &mut String, name: &str, number: u64, unit: &str) {
    let width = 23_usize.saturating_sub(name.len());
    // A string takes all that is written.
    let _ = writeln!(text, "{name}:{number:>width$}{unit}");
}

fn vmstat() -> String {
    let mut text = String::new();
    for (name, value) in manager().vmstat() {
        let _ = writeln!(text, "{name} {value}");
    }
    text
}
