//! The brackets of a secondary MMU: the open ones, and the durations by verb.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use quire::addr::VirtRange;

thread_local! {
    static VERB: Cell<&'static str> = const { Cell::new("") };
}

/// Runs `action` under a name: brackets that this thread opens meanwhile are counted under it
/// ([`Nested::stats`](super::Nested::stats)). Names nest; the innermost counts.
pub fn during<R>(verb: &'static str, action: impl FnOnce() -> R) -> R {
    struct Restore(&'static str);
    impl Drop for Restore {
        fn drop(&mut self) {
            VERB.set(self.0);
        }
    }
    let _restore = Restore(VERB.replace(verb));
    action()
}

/// The brackets of one verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BracketStats {
    /// How many there were.
    pub count: u64,
    /// The sum of their durations, from the call of the start to the call of the end.
    pub total: Duration,
    /// The longest of them.
    pub longest: Duration,
    /// The part of that time for dropping copies and waiting for accesses through them.
    pub dropping: Duration,
    /// Copies that were dropped.
    pub dropped: u64,
}

/// A bracket that is not closed yet.
struct Open {
    thread: ThreadId,
    range: VirtRange,
    /// The part that is guest memory.
    guest: Range<u64>,
    verb: &'static str,
    began: Instant,
    dropping: Duration,
    dropped: u64,
    /// The tables were not notified, on purpose.
    lost: bool,
}

/// All of one secondary MMU.
#[derive(Default)]
pub(super) struct Brackets {
    /// Brackets that began, without lost ones.
    pub(super) begun: u64,
    open: Vec<Open>,
    verbs: BTreeMap<&'static str, BracketStats>,
    /// The duration of each, if it is kept.
    times: Option<BTreeMap<&'static str, Vec<Duration>>>,
}

impl Brackets {
    pub(super) fn open(&mut self, range: VirtRange, guest: Range<u64>, began: Instant, lost: bool) {
        self.begun += u64::from(!lost);
        self.open.push(Open {
            thread: std::thread::current().id(),
            range,
            guest,
            verb: VERB.get(),
            began,
            dropping: Duration::ZERO,
            dropped: 0,
            lost,
        });
    }

    fn own(&mut self, range: VirtRange) -> Option<usize> {
        let thread = std::thread::current().id();
        self.open.iter().rposition(|open| open.thread == thread && open.range == range)
    }

    /// Records the cost so far of the bracket that the running thread opened.
    pub(super) fn note_dropped(&mut self, range: VirtRange, dropped: u64) {
        if let Some(at) = self.own(range) {
            let open = &mut self.open[at];
            (open.dropping, open.dropped) = (open.began.elapsed(), dropped);
        }
    }

    /// Closes the bracket that the running thread opened; false if there was none.
    pub(super) fn close(&mut self, range: VirtRange) -> bool {
        let Some(at) = self.own(range) else { return false };
        let open = self.open.remove(at);
        let stats = self.verbs.entry(open.verb).or_default();
        let took = open.began.elapsed();
        stats.count += 1;
        stats.total += took;
        stats.longest = stats.longest.max(took);
        stats.dropping += open.dropping;
        stats.dropped += open.dropped;
        if let Some(times) = &mut self.times {
            times.entry(open.verb).or_default().push(took);
        }
        true
    }

    /// Whether a bracket covers one of these addresses.
    pub(super) fn covers(&self, guest: &Range<u64>) -> bool {
        self.open
            .iter()
            .any(|open| !open.lost && open.guest.start < guest.end && guest.start < open.guest.end)
    }

    pub(super) fn by_verb(&self) -> BTreeMap<&'static str, BracketStats> {
        self.verbs.clone()
    }

    /// Keeps the duration of each bracket from now on.
    pub(super) fn keep_times(&mut self) {
        self.times.get_or_insert_default();
    }

    pub(super) fn times(&self) -> BTreeMap<&'static str, Vec<Duration>> {
        self.times.clone().unwrap_or_default()
    }

    pub(super) fn forget(&mut self) {
        self.verbs.clear();
        self.times.iter_mut().for_each(BTreeMap::clear);
    }
}
