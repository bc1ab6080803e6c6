//! Tables of exact counts: one line for each case and arm.

use super::row::Row;
use super::runner::REPEATED;
use super::table;
use crate::output::Sheet;

/// Counters of the run that steps through instructions: its memory, its counts, and these for 1 GiB. They
/// have their own table.
const STEPPED: [&str; 6] =
    ["stepped_bytes", "instructions", "atomics", "descriptors", "atomics_per_gib", "descriptors_per_gib"];

/// Counts of one repetition, scaled to 1 GiB where the case names its bytes. Counters that are 0 everywhere
/// are left out.
pub fn per_gib(rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.metric == "time" && row.skipped.is_none()).collect();
    let counted =
        |name: &&str| rows.iter().any(|row| row.counters.get(*name).is_some_and(|count| *count > 0));
    let all = table::distinct(rows.iter().flat_map(|row| row.counters.keys().map(String::as_str)));
    let apart = |name: &&str| !STEPPED.contains(name) && *name != REPEATED;
    let names: Vec<&str> = all.into_iter().filter(apart).filter(counted).collect();
    let mut header = vec!["case".to_owned(), "arm".to_owned()];
    header.extend(names.iter().map(|name| (*name).to_owned()));
    let mut text = Sheet::new(&header, 2);
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
    let says = "counts of one repetition, the largest of all, for each GiB (empty: this arm does not count it; `locks`, of every \
     kind, come from a repetition of their own on a platform that counts them)";
    match by_instructions(&rows) {
        Some(stepped) => format!("{says}\n{text}\n{stepped}"),
        None => format!("{says}\n{text}"),
    }
}

/// The counts of the run that steps through instructions; `None` without any.
fn by_instructions(rows: &[&Row]) -> Option<String> {
    let header = ["case".to_owned(), "arm".to_owned()];
    let header: Vec<String> = header.into_iter().chain(STEPPED.map(str::to_owned)).collect();
    let mut text = Sheet::new(&header, 2);
    for row in rows.iter().filter(|row| row.counters.contains_key(STEPPED[0])) {
        let mut cells = vec![row.case.clone(), row.arm.clone()];
        let count = |name: &&str| row.counters.get(*name).map(u64::to_string).unwrap_or_default();
        cells.extend(STEPPED.iter().map(count));
        text.add_row(cells);
    }
    let says = "counted one instruction at a time, over `stepped_bytes` of the case's memory, in cases of \
     few instructions: instructions, locked ones (`atomics`), page descriptors touched. The last two columns \
     extrapolate to 1 GiB from whole page tables (atomics: from one table too). Flushes, clearing and \
     copying are left out, since the machine does them by itself";
    (!text.is_empty()).then(|| format!("{says}\n{text}"))
}

/// The counts of pools of huge pages in one `work`.
pub fn of_pools(rows: &[Row], work: &str) -> String {
    // The case names the size of the pool.
    let counted = |name: &String| name != "pages" && name != REPEATED;
    let rows: Vec<&Row> = rows
        .iter()
        .filter(|row| row.metric == "time" && row.skipped.is_none() && row.counters.keys().any(counted))
        .collect();
    let names = table::distinct(
        rows.iter().flat_map(|row| row.counters.keys().filter(|name| counted(name)).map(String::as_str)),
    );
    let mut header = vec!["case".to_owned(), "arm".to_owned()];
    header.extend(names.iter().map(|name| (*name).to_owned()));
    let mut text = Sheet::new(&header, 2);
    for row in rows {
        let mut cells = vec![row.case.clone(), row.arm.clone()];
        cells
            .extend(names.iter().map(|name| row.counters.get(*name).map(u64::to_string).unwrap_or_default()));
        text.add_row(cells);
    }
    format!("counted in one {work}, the largest of all\n{text}")
}

/// What was cleared for the memory that the program got.
pub fn of_clearing(rows: &[Row]) -> String {
    let header = ["case", "arm", "MiB handed out", "cleared for it", "cleared ahead", "cleared / handed out"];
    let mut text = Sheet::new(&header.map(str::to_owned), 2);
    for row in rows.iter().filter(|row| row.metric == "time") {
        let count = |name: &str| row.counters.get(name).map(|bytes| *bytes as f64);
        let (Some(out), Some(cleared), Some(ahead)) =
            (count("bytes_handed_out"), count("bytes_cleared"), count("bytes_cleared_ahead"))
        else {
            continue;
        };
        let mib = |bytes: f64| format!("{:.2}", bytes / f64::from(1 << 20));
        let share = format!("{:.4}", cleared / out);
        text.add_row(vec![row.case.clone(), row.arm.clone(), mib(out), mib(cleared), mib(ahead), share]);
    }
    format!(
        "bytes that were cleared in one repetition, page tables apart, for the bytes that leaves map in the end: no byte \
         is cleared twice where the last column is at most 1\n{text}"
    )
}
