//! Which processes DAMON watches: the largest that have lived for a while. A change makes the kernel begin anew with
//! its regions, so that it comes once a second at most.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// The most processes that are watched at once: they share the regions.
const MOST: usize = 8;

/// A process that joins others has lived so long.
const SETTLED: Duration = Duration::from_secs(1);

/// The processes that are watched.
#[derive(Debug, Default)]
pub(super) struct Targets {
    pids: Vec<i32>,
    since: Option<Instant>,
    /// When each living process was first seen.
    seen: HashMap<i32, Instant>,
}

impl Targets {
    /// The process of a target.
    pub(super) fn pid(&self, target: usize) -> Option<i32> {
        self.pids.get(target).copied()
    }

    /// Notes which processes live. Returns those to watch: the ones with the most resident pages, of which one that is seen for
    /// the first time is none.
    pub(super) fn look(&mut self, living: &[i32], now: Instant, resident: impl Fn(i32) -> u64) -> Vec<i32> {
        self.seen.retain(|pid, _| living.contains(pid));
        let known = living.iter().filter(|pid| self.seen.contains_key(pid));
        let mut wanted: Vec<(u64, i32)> = known.map(|pid| (resident(*pid), *pid)).collect();
        living.iter().for_each(|pid| _ = self.seen.entry(*pid).or_insert(now));
        wanted.retain(|(pages, _)| *pages > 0);
        wanted.sort_by_key(|(pages, pid)| (std::cmp::Reverse(*pages), *pid));
        wanted.truncate(MOST);
        wanted.into_iter().map(|(_, pid)| pid).collect()
    }

    /// Whether the thread must be started with these processes: it is off, or one of them is not watched.
    pub(super) fn is_change_due(&self, wanted: &[i32], is_on: bool, now: Instant) -> bool {
        let lasts = |since: &Instant| now.duration_since(*since) >= SETTLED;
        let is_new = |pid: &&i32| !self.pids.contains(pid);
        let joins = wanted.iter().filter(is_new).any(|pid| self.seen.get(pid).is_some_and(lasts));
        !wanted.is_empty() && (!is_on || joins && self.since.as_ref().is_none_or(lasts))
    }

    /// These are watched from now on.
    pub(super) fn watched(&mut self, pids: Vec<i32>, now: Instant) {
        (self.pids, self.since) = (pids, Some(now));
    }
}

/// Pages of a process in memory; none of one that has ended.
pub(super) fn resident(pid: i32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}
