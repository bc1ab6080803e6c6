//! Holds threads at the entry of a memory call until another thread of the same memory has left its own: one call at a time.
//!
//! A long call may wait for one that is held here, for example for a fault handler that unmaps. So no thread
//! is held longer than [`PATIENCE`]; the calls then overlap, and the recording marks them as unordered.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

/// The longest time that a call keeps others waiting; a hundred times what most calls take.
const PATIENCE: Duration = Duration::from_millis(20);

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
    waiting: VecDeque<Pid>,
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
                let turn = Turn { inside: tid, since: Instant::now(), waiting: VecDeque::new() };
                self.turns.insert(*memory, turn);
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
    pub(super) fn overdue(&mut self) -> Vec<Pid> {
        let is_over = |since: &Instant| since.elapsed() > PATIENCE;
        let late = self.turns.iter().filter(|(_, turn)| !turn.waiting.is_empty() && is_over(&turn.since));
        let late: Vec<u32> = late.map(|(memory, _)| *memory).collect();
        let mut next: Vec<Pid> = late.into_iter().filter_map(|memory| self.pass_on(memory)).collect();
        let (orphans, unknown) = self.unknown.drain(..).partition(|(_, since)| is_over(since));
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
            Some(next) => (turn.inside, turn.since) = (next, Instant::now()),
            None => drop(self.turns.remove(&memory)),
        }
        next
    }
}

#[cfg(test)]
mod tests;
