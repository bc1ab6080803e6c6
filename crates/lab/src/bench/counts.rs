//! What was counted, beside the table of times: one line for each case and arm.

use super::row::Row;
use super::table;

/// Counts of one repetition, scaled to 1 GiB where the case says how many bytes it is about. Counters that are 0
/// everywhere are left out.
pub fn per_gib(rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.metric == "time" && row.skipped.is_none()).collect();
    let counted =
        |name: &&str| rows.iter().any(|row| row.counters.get(*name).is_some_and(|count| *count > 0));
    let all = table::distinct(rows.iter().flat_map(|row| row.counters.keys().map(String::as_str)));
    let names: Vec<&str> = all.into_iter().filter(counted).collect();
    let mut header = vec!["case".to_owned(), "arm".to_owned()];
    header.extend(names.iter().map(|name| (*name).to_owned()));
    let mut text = table::new(&header, 2);
    for row in &rows {
        let bytes = row.params.get("bytes").and_then(serde_json::Value::as_f64);
        let scale = bytes.map_or(1.0, |bytes| f64::from(1 << 30) / bytes);
        let mut cells = vec![row.case.clone(), row.arm.clone()];
        cells.extend(names.iter().map(|name| match row.counters.get(*name) {
            Some(count) => format!("{:.0}", *count as f64 * scale),
            None => String::new(),
        }));
        text.add_row(cells);
    }
    let says = "counted in one repetition, for each GiB (an empty cell: this arm does not count it; `locks`, of every kind: in \
                a repetition of its own, on a platform that counts them)";
    format!("{says}\n{text}")
}
