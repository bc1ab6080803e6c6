//! Small runs of all experiments.

use std::thread;

use lab::bench::row::Row;

/// The names of all experiments, in the order in which they run.
pub(crate) const NAMES: [&str; 31] = [
    "boot",
    "page-alloc",
    "time-bench",
    "pcp-interrupt",
    "mobility",
    "page-test",
    "brk-test",
    "fault",
    "unmap",
    "dontneed",
    "exit",
    "fork",
    "protect",
    "move",
    "aged",
    "churn",
    "collapse",
    "mapcount",
    "collapse-thp",
    "khugepaged",
    "clear",
    "clear-cache",
    "clear-then-use",
    "first-touch",
    "mlock-gigantic",
    "hugetlb-pool",
    "demote",
    "hugetlb-churn",
    "brackets",
    "postcopy",
    "guest",
];

/// Those that change no setting of the machine, so that they run beside the others.
const CHANGE_NOTHING: [&str; 12] = [
    "boot",
    "time-bench",
    "pcp-interrupt",
    "mobility",
    "churn",
    "collapse",
    "mapcount",
    "khugepaged",
    "clear-cache",
    "clear-then-use",
    "brackets",
    "postcopy",
];

/// The tables and the rows of all experiments but `guest`, which needs an emulator: those that change no setting run
/// beside the others.
pub(crate) fn smoke() -> (String, Vec<Row>) {
    let alone = |name: &&str| *name != "guest" && !CHANGE_NOTHING.contains(name);
    let others: Vec<&str> = NAMES.into_iter().filter(alone).collect();
    let [(tables, rows), (more_tables, more)] = thread::scope(|scope| {
        [&CHANGE_NOTHING[..], &others].map(|names| scope.spawn(|| run(names))).map(|run| run.join().unwrap())
    });
    (tables + &more_tables, [rows, more].concat())
}

/// The table and the rows of a small run of these experiments.
fn run(names: &[&str]) -> (String, Vec<Row>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.json");
    let options = ["--smoke", "--ipi-price", "2,252", "--json", file.to_str().unwrap()];
    let output = crate::output(&[&options, names].concat());
    assert!(output.status.success(), "{}", crate::text(&output.stderr));
    let table = crate::text(&output.stdout);
    let rows = crate::rows(&std::fs::read_to_string(&file).unwrap());
    for row in &rows {
        crate::check(row);
        let shown = table.contains(&row.case) && table.contains(&row.arm);
        assert!(shown, "{} {} not in the table", row.case, row.arm);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    (table, rows)
}
