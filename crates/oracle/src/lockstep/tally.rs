//! Counts of operations and their answers: a rare answer that never occurs is code that never runs.

use std::fmt;

use quire::error::{FaultError, MmError};

use crate::ops::{KIND_NAMES, Op};

/// The answer to an operation. An operation of several accesses has the last failure's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It succeeded.
    Done,
    /// A system call failed.
    Failed(MmError),
    /// An access failed.
    Fault(FaultError),
}

/// How often each kind of operation had each answer.
#[derive(Clone, Debug)]
pub struct Tally {
    kinds: Vec<Vec<(Answer, u64)>>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { kinds: vec![Vec::new(); KIND_NAMES.len()] }
    }
}

impl Tally {
    pub(super) fn note(&mut self, op: &Op, answer: Answer) {
        self.add(op.kind(), answer, 1);
    }

    fn add(&mut self, kind: usize, answer: Answer, times: u64) {
        let answers = &mut self.kinds[kind];
        match answers.iter_mut().find(|(known, _)| *known == answer) {
            Some((_, count)) => *count += times,
            None => answers.push((answer, times)),
        }
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        for (kind, answers) in other.kinds.iter().enumerate() {
            answers.iter().for_each(|&(answer, times)| self.add(kind, answer, times));
        }
    }

    /// How many operations were done.
    pub fn operations(&self) -> u64 {
        self.kinds.iter().flatten().map(|(_, times)| times).sum()
    }

    /// How many operations of this name ([`KIND_NAMES`]) had the answer.
    pub fn times(&self, name: &str, answer: Answer) -> u64 {
        let named = KIND_NAMES.iter().zip(&self.kinds).filter(|(known, _)| **known == name);
        let answers = named.flat_map(|(_, answers)| answers);
        answers.filter(|(known, _)| *known == answer).map(|(_, times)| times).sum()
    }
}

/// A line for each kind: its name, its count, and the counts of its failures by reason.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, answers) in KIND_NAMES.iter().zip(&self.kinds).filter(|(_, answers)| !answers.is_empty()) {
            let total: u64 = answers.iter().map(|(_, times)| times).sum();
            write!(f, "{name:12} {total:>11}")?;
            let mut refused: Vec<_> = answers.iter().filter(|(answer, _)| *answer != Answer::Done).collect();
            refused.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
            for (answer, times) in refused {
                match answer {
                    Answer::Done => {}
                    Answer::Failed(error) => write!(f, "  {error:?} {times}")?,
                    Answer::Fault(fault) => write!(f, "  {fault:?} {times}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
