//! Formats durations and parses sizes.

use super::line;

/// Nanoseconds in the unit that leaves at most three digits before the point.
pub fn duration(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds.abs() {
        ns if ns < 1e3 => (nanoseconds, "ns"),
        ns if ns < 1e6 => (nanoseconds / 1e3, "us"),
        ns if ns < 1e9 => (nanoseconds / 1e6, "ms"),
        _ => (nanoseconds / 1e9, "s"),
    };
    let digits = match value.abs() {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// Bytes, with `K`, `M`, `G` or `T` of 1024 behind them if wanted, in either case.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        unit => return Err(format!("no such unit: {}; use K, M, G or T", line(unit))),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number; write for example 512M or 2G".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more than 16 EiB".to_owned())
}
