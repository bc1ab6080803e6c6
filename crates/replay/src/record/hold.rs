//! Holds threads at the entry of a memory call until another thread of the same memory has left its own: one call at a time.
//!
//! A long call may wait for one that is held here, for example for a fault handler that unmaps. So no thread
//! is held for a call that does not get on: one that has slept all the time since [`DOZE`] before
//! [`PATIENCE`] was over, or that has run for so long. The calls then overlap, and the recording marks them
//! as unordered. A call that waits for a processor gets on: on a busy machine that may take any time, and
//! nothing that is held here shortens it.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use super::progress::{Sample, State};

/// The longest time that a call keeps others waiting, without the time in which it was ready to run and had
/// no processor; a hundred times what most calls take.
const PATIENCE: Duration = Duration::from_millis(20);

/// A thread that sleeps so long waits for more than a lock that another call holds for a moment.
const DOZE: Duration = Duration::from_millis(10);

/// The time from one look at a thread to the next.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// The threads of a program, by memory.
#[derive(Default)]
pub(super) struct Turns {
    /// The number of each thread's memory.
    memory: HashMap<Pid, u32>,
    next: u32,
    turns: HashMap<u32, Turn>,
    /// Threads that stopped before the record of their creation arrived.
    unknown: Vec<(Pid, Instant)>,
}

/// The turns of one memory.
struct Turn {
    /// The thread that is inside a call.
    inside: Pid,
    since: Instant,
    watch: Option<Watch>,
    waiting: VecDeque<Pid>,
}

/// What was seen of a call that takes long.
struct Watch {
    /// How long its thread had run at the first look.
    ran_ns: u64,
    last: Instant,
    /// The last change, and the moment at which it was seen.
    seen: Sample,
    since: Instant,
}

impl Turn {
    fn new(inside: Pid) -> Turn {
        Turn { inside, since: Instant::now(), watch: None, waiting: VecDeque::new() }
    }

    /// Whether the thread inside has had its time. Looks at it only now and then.
    fn is_over(&mut self, now: Instant, look: impl Fn(Pid) -> Option<Sample>) -> bool {
        let due =
            self.watch.as_ref().map_or(self.since + PATIENCE - DOZE, |watch| watch.last + BETWEEN_LOOKS);
        if self.waiting.is_empty() || now < due {
            return false;
        }
        let Some(seen) = look(self.inside) else { return now >= self.since + PATIENCE };
        let watch = self.watch.get_or_insert(Watch { ran_ns: seen.ran_ns, last: now, seen, since: now });
        watch.last = now;
        if watch.seen != seen {
            (watch.seen, watch.since) = (seen, now);
        }
        match seen.state {
            State::Ready => u128::from(seen.ran_ns.saturating_sub(watch.ran_ns)) >= PATIENCE.as_nanos(),
            State::Sleeps => now >= watch.since + DOZE,
            State::Stopped => false,
        }
    }
}

impl Turns {
    /// Records that a thread gets its own memory.
    pub(super) fn own(&mut self, tid: Pid) {
        self.memory.insert(tid, self.next);
        self.next += 1;
    }

    /// Records that a thread made another, which shares its memory or not. True if the new one waits at the
    /// entry of a call.
    pub(super) fn made(&mut self, maker: Pid, made: Pid, shares: bool) -> bool {
        match self.memory.get(&maker).copied().filter(|_| shares) {
            Some(memory) => drop(self.memory.insert(made, memory)),
            None => self.own(made),
        }
        let waits = self.unknown.iter().position(|(tid, _)| *tid == made);
        waits.map(|at| self.unknown.swap_remove(at)).is_some()
    }

    /// A thread is about to enter a call. False if it must wait: [`Turns::left`] or another method returns it
    /// later.
    pub(super) fn enters(&mut self, tid: Pid) -> bool {
        let Some(memory) = self.memory.get(&tid) else {
            self.unknown.push((tid, Instant::now()));
            return false;
        };
        match self.turns.get_mut(memory) {
            Some(turn) => {
                turn.waiting.push_back(tid);
                false
            }
            None => {
                self.turns.insert(*memory, Turn::new(tid));
                true
            }
        }
    }

    /// A thread has left its call, or ended. Returns the thread whose turn it is now.
    pub(super) fn left(&mut self, tid: Pid) -> Option<Pid> {
        let memory = *self.memory.get(&tid)?;
        let turn = self.turns.get_mut(&memory)?;
        turn.waiting.retain(|waiting| *waiting != tid);
        if turn.inside == tid { self.pass_on(memory) } else { None }
    }

    /// A thread has ended.
    pub(super) fn ended(&mut self, tid: Pid) -> Option<Pid> {
        self.unknown.retain(|(unknown, _)| *unknown != tid);
        let next = self.left(tid);
        self.memory.remove(&tid);
        next
    }

    /// The threads that have waited long enough; they get their turn although another is inside.
    pub(super) fn overdue(&mut self, now: Instant, look: impl Fn(Pid) -> Option<Sample>) -> Vec<Pid> {
        let late =
            self.turns.iter_mut().filter_map(|(memory, turn)| turn.is_over(now, &look).then_some(*memory));
        let late: Vec<u32> = late.collect();
        let mut next: Vec<Pid> = late.into_iter().filter_map(|memory| self.pass_on(memory)).collect();
        let (orphans, unknown) = self.unknown.drain(..).partition(|(_, since)| now >= *since + PATIENCE);
        self.unknown = unknown;
        for (orphan, _) in orphans {
            self.own(orphan);
            next.extend(self.enters(orphan).then_some(orphan));
        }
        next
    }

    /// Does any thread wait?
    pub(super) fn holds_any(&self) -> bool {
        !self.unknown.is_empty() || self.turns.values().any(|turn| !turn.waiting.is_empty())
    }

    fn pass_on(&mut self, memory: u32) -> Option<Pid> {
        let turn = self.turns.get_mut(&memory)?;
        let next = turn.waiting.pop_front();
        match next {
            Some(next) => *turn = Turn { waiting: std::mem::take(&mut turn.waiting), ..Turn::new(next) },
            None => drop(self.turns.remove(&memory)),
        }
        next
    }
}

#[cfg(test)]
mod tests;
