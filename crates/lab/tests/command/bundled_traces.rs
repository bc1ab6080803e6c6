//! The recordings in `traces/` keep the rules that a replayer relies on.

use crate::rules;
use std::path::Path;

use crate::bundled::{bundled, directory};
use lab::trace::{Tier, TraceReader};

/// Together they fit into a repository.
const MOST_BYTES: u64 = 10 << 20;

/// A single one is replayed in reasonable time.
const MOST_EVENTS: u64 = 1_500_000;

fn check(path: &Path) {
    let name = path.file_name().expect("it has a name").to_string_lossy();
    println!("{name}:");
    let rules::Kept { header, faults, resolved, probes, processes, in_doubt } = rules::check(path);
    assert_eq!(header.tier, Tier::Privileged, "{name}");
    assert!(header.thp_disabled && !header.command.is_empty(), "{name}");
    assert!(
        !header.program.name.is_empty() && !header.program.version.is_empty(),
        "{name} has no name or version"
    );
    assert!(header.events <= MOST_EVENTS, "{name} has {} events", header.events);
    assert_eq!(in_doubt, 0, "{name}");
    assert!(faults > 1000, "{name} has only {faults} faults");
    println!(
        "  {} events, {faults} faults ({} not resolved, {probes} probes), {processes} processes, {} of {} faults \
         without an event",
        header.events,
        faults - resolved,
        header.totals.kernel_faults.saturating_sub(resolved),
        header.totals.kernel_faults
    );
}

#[test]
fn every_bundled_trace_keeps_the_rules() {
    let traces = bundled();
    assert!(traces.len() >= 7, "there are {} traces", traces.len());
    let bytes: u64 = traces.iter().map(|path| path.metadata().expect("it is there").len()).sum();
    assert!(bytes <= MOST_BYTES, "the traces have {bytes} bytes together");
    for path in &traces {
        check(path);
    }
}

/// The table in the directory names every trace, and nothing that is not there.
#[test]
fn the_table_is_complete() {
    let table = std::fs::read_to_string(directory().join("README.md")).expect("the directory has a README");
    let traces = bundled();
    let rows = table.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, traces.len(), "rows and traces");
    for path in traces {
        let header = TraceReader::open(&path).expect("it opens").header().clone();
        let name = path.file_name().expect("it has a name").to_string_lossy();
        let row = table.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("no row for {name}"));
        let size = path.metadata().expect("it is there").len();
        for part in [header.program.version.clone(), header.events.to_string(), size.to_string()] {
            assert!(row.contains(&part), "the row of {name} does not say {part}");
        }
    }
}
