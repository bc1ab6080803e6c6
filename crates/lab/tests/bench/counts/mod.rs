//! What our own arms count while they take address spaces apart, in a small run.

use lab::bench::folio::PAGE;
use lab::bench::row::Row;

const APART: [&str; 6] = ["unmap", "dontneed", "exit", "protect", "move", "fork"];

/// Locked instructions of an unmap besides those of each page.
const ALWAYS: u64 = 12;

/// Bytes that a page table of the lowest level maps.
const TABLE: u64 = 2 << 20;

/// Flushes go to the CPUs that run the address space and to no other; locked instructions and descriptors are counted.
pub(crate) fn check(rows: &[Row]) {
    let ours = rows.iter().filter(|row| row.arm != "linux" && row.metric == "time");
    for row in ours.filter(|row| APART.contains(&row.experiment.as_str())) {
        flushes(row);
        // Small runs watch one verb.
        let watched = row.experiment == "unmap" && row.case == "4KiB";
        assert_eq!(row.counters.contains_key("stepped_bytes"), watched, "{}/{}", row.experiment, row.case);
        if watched {
            instructions(row);
        }
    }
}

fn flushes(row: &Row) {
    let name = format!("{} {} {}", row.experiment, row.case, row.arm);
    let count = |counter: &str| row.counters[counter];
    let local = count("nr_tlb_local_flush_all") + count("nr_tlb_local_flush_one");
    let remote = ["nr_tlb_remote_flush", "nr_tlb_remote_flush_received", "ipis"].map(count);
    if row.case.ends_with("/2cpus") {
        // 8 MiB fit into one gather.
        assert_eq!((local, remote), (1, [1; 3]), "{name}");
    } else {
        assert_eq!(remote, [0; 3], "{name}");
        assert!(!row.case.ends_with("/idle") || local == 0, "{name}: {local} flushes");
    }
}

fn instructions(row: &Row) {
    let name = format!("{} {} {}", row.experiment, row.case, row.arm);
    let count = |counter: &str| row.counters[counter];
    let (pages, tables) = (count("stepped_bytes") / PAGE as u64, count("stepped_bytes").div_ceil(TABLE));
    let (executed, atomics, descriptors) = (count("instructions"), count("atomics"), count("descriptors"));
    assert!(atomics > 0 && atomics < executed, "{name}: {atomics} of {executed}");
    assert!((1..=3 * tables + 8).contains(&descriptors), "{name}: {descriptors} for {tables} tables");
    let page_by_page = row.arm != "quire";
    assert_eq!(atomics >= ALWAYS + 2 * pages, page_by_page, "{name}: {atomics} for {pages} pages");
}
