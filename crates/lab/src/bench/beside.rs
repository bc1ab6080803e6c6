//! Tables that compare arms.

use super::experiment::TIME;
use super::ours::verbs::{PER_PAGE, Way, ZAPS};
use super::row::Row;
use super::table;
use crate::output::Sheet;

/// The median time of an arm in a case.
pub fn median(rows: &[Row], arm: &str, case: &str) -> Option<f64> {
    let wanted = |row: &&Row| row.arm == arm && row.case == case && row.metric == TIME.name;
    rows.iter().find(wanted).and_then(|row| row.median)
}

/// A ratio with three digits; empty where one value is missing.
pub fn relative(value: Option<f64>, whole: Option<f64>) -> String {
    match (value, whole) {
        (Some(value), Some(whole)) if whole > 0.0 => format!("{:.3}", value / whole),
        _ => String::new(),
    }
}

/// Quire's times over those of `per-page`, which handles every entry by itself, as kernels did before the
/// published scheme.
pub fn per_page(rows: &[Row]) -> String {
    let wanted = "wanted for quire: at most 0.1 for 1 GiB, at most 1 for a single page";
    over(rows, ZAPS, PER_PAGE, wanted)
}

/// The times of `ways` over that of `base`, under a line that gives the bound.
pub fn over(rows: &[Row], ways: &[Way], base: &str, wanted: &str) -> String {
    let arms: Vec<&str> = ways.iter().map(|way| way.name).filter(|arm| *arm != base).collect();
    let mut header = vec!["case".to_owned()];
    header.extend(arms.iter().map(|arm| format!("{arm} / {base}")));
    let mut text = Sheet::new(&header, 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let whole = median(rows, base, case);
        let mut cells = vec![case.to_owned()];
        cells.extend(arms.iter().map(|arm| relative(median(rows, arm, case), whole)));
        text.add_row(cells);
    }
    format!("time over that of {base} ({wanted})\n{text}")
}
