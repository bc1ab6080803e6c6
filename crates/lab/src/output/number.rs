//! Figures as people read them.

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
