use std::collections::BTreeMap;

use memmap2::{Advice, MmapMut};

use super::*;
use crate::record::parse::Parser;
use crate::record::perf::{self, Followed};
use crate::record::raw::RawKind;
use crate::record::setup;

const PAGE: usize = 4096;
const REPEATS: usize = 500;

/// Records by kind of what this thread does.
fn records(tracefs: &Tracefs, work: impl FnOnce()) -> BTreeMap<&'static str, usize> {
    let mut wanted = perf::common();
    let (fields, _) = all(tracefs, &mut wanted).expect("tracepoints");
    setup::raise_open_files().expect("a limit of open files");
    let mut events = perf::rings(true, None, PRIVILEGED_RING).expect("rings");
    events.follow(&wanted, Followed::Thread(0), true).expect("events and their filters");
    events.sinks.iter().for_each(|sink| sink.enable(|_| true));
    work();
    events.sinks.iter().for_each(|sink| sink.disable(|_| true));
    let parser = Parser::new(events.sources.clone(), Some(fields));
    let mut found = BTreeMap::new();
    for sink in &mut events.sinks {
        sink.drain(&parser, |raw| {
            let kind = match raw.kind {
                RawKind::Fault { .. } => "fault",
                RawKind::Resolved { .. } => "resolved",
                RawKind::Enter { .. } => "enter",
                RawKind::Leave { .. } => "leave",
                RawKind::Mapping(_) => "mapping",
                RawKind::Locked { .. } => "lock for reading",
                RawKind::Unlocked { .. } => "unlock",
                RawKind::Lost { .. } => "lost",
                _ => "other",
            };
            *found.entry(kind).or_default() += 1;
        });
    }
    // What the thread does beside the work, such as a fault of its stack.
    found.retain(|kind, count| *kind == "lost" || *count > REPEATS / 10);
    found
}

/// Each record costs the program about half a microsecond.
#[test]
fn an_event_has_few_records() {
    let root = nix::unistd::Uid::effective().is_root();
    let Some(tracefs) = Tracefs::find().ok().filter(|_| root) else {
        return eprintln!("no tracepoints for this user: not tested");
    };
    let mut memory = MmapMut::map_anon(REPEATS * PAGE).expect("memory");
    // Not every kernel has large folios.
    let _ = memory.advise(Advice::NoHugePage);
    let faults = records(&tracefs, || memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1));
    let is_exact = |found: &BTreeMap<&str, usize>, kinds: &[&str]| {
        assert!(found.keys().eq(kinds), "{found:?}");
        found
            .values()
            .for_each(|count| assert!((REPEATS..REPEATS + REPEATS / 10).contains(count), "{found:?}"));
    };
    is_exact(&faults, &["fault", "resolved"]);
    let calls = records(&tracefs, move || {
        for _ in 0..REPEATS / 2 {
            let unwritten = memory.make_read_only().expect("mprotect");
            memory = unwritten.make_mut().expect("mprotect");
        }
    });
    is_exact(&calls, &["enter", "leave", "mapping", "unlock"]);
}
