//! Holds threads at the entry of a memory call until another thread of the same memory has left its own: one call at a time.
//!
//! The user tier does not see the lock that orders the changes of an address space, so it makes the order itself.
//! A call that takes long may wait for one that is held up here (a handler of faults that unmaps, say). So nothing is
//! held longer than [`PATIENCE`]; the calls then overlap, and the recording says that their order is not known.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nix::unistd::Pid;

/// As long as a call may keep others waiting; a hundred times what most take.
const PATIENCE: Duration = Duration::from_millis(20);

/// The threads of a program by the memory that they work in.
#[derive(Default)]
pub(super) struct Turns {
    /// The number of each thread's memory.
    memory: HashMap<Pid, u32>,
    next: u32,
    turns: HashMap<u32, Turn>,
    /// Threads that came before the one that made them had told of them.
    unknown: Vec<(Pid, Instant)>,
}

/// Of one memory.
struct Turn {
    /// The thread that is inside a call.
    inside: Pid,
    since: Instant,
    waiting: VecDeque<Pid>,
}

impl Turns {
    /// A thread starts to work in a memory of its own.
    pub(super) fn own(&mut self, tid: Pid) {
        self.memory.insert(tid, self.next);
        self.next += 1;
    }

    /// A thread made another, which shares its memory or not. True if that one waits at the entry of a call.
    pub(super) fn made(&mut self, maker: Pid, made: Pid, shares: bool) -> bool {
        match self.memory.get(&maker).copied().filter(|_| shares) {
            Some(memory) => drop(self.memory.insert(made, memory)),
            None => self.own(made),
        }
        let waits = self.unknown.iter().position(|(tid, _)| *tid == made);
        waits.map(|at| self.unknown.swap_remove(at)).is_some()
    }

    /// A thread is about to enter a call. False if it has to wait: then [`Turns::left`] or another gives it back.
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

    /// A thread has left its call, or ended. Gives the one whose turn it is now.
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

    /// The threads that have waited long enough: their turn comes although another is inside.
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
