//! The pages that a process touches, in order.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::trace::{Access, Event, EventKind, TraceReader};

pub(super) const PAGE: u64 = 4096;

/// A touch of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    /// The virtual address: exact for a fault, the start of the page otherwise.
    pub addr: u64,
    pub store: bool,
}

/// What an event touches: start, length in bytes, and whether it stores. Ranges that the kernel brings in around
/// a fault are not touches of the program.
const fn touched(event: &Event) -> (u64, u64, bool) {
    match &event.kind {
        kind if kind.is_unresolved() => (0, 0, false),
        // An unknown access may store.
        EventKind::Fault { addr, access, .. } => {
            (*addr, 1, matches!(access, Access::Write | Access::Unknown))
        }
        EventKind::Populate { start, len, cause } => (*start, *len, cause.stores()),
        _ => (0, 0, false),
    }
}

/// The number of pages that an event touches; no trace of a program has a range behind the last address.
pub(super) const fn pages(event: &Event) -> u64 {
    let (start, len, _) = touched(event);
    if start.checked_add(len).is_some() { len.div_ceil(PAGE) } else { u64::MAX }
}

/// The pages that an event touches.
pub(super) fn touches(event: &Event) -> impl Iterator<Item = Touch> + use<> {
    let (start, _, store) = touched(event);
    (0..pages(event)).map(move |page| Touch { addr: start + page * PAGE, store })
}

/// The process that touches most pages.
///
/// # Errors
/// A trace that cannot be read, or in which none touches a page.
pub(super) fn largest(file: &Path) -> Result<u32> {
    let mut counts: HashMap<u32, u64> = HashMap::new();
    for event in TraceReader::open(file)? {
        let event = event?;
        let count = counts.entry(event.pid).or_default();
        *count = count.saturating_add(pages(&event));
    }
    // Of equals, the one that was started first has the smaller number, mostly.
    let most = counts.into_iter().filter(|(_, count)| *count > 0).max_by_key(|&(pid, count)| (count, !pid));
    most.map(|(pid, _)| pid).context("no process touches a page")
}
