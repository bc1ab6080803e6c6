//! The canary: a list that nothing guards, on the same machine and under the same ledger, must be found out.

use super::*;
use crate::interrupts::world::{Broken, Ledger};

/// A list as every textbook has it.
struct Toy {
    len: AtomicU64,
    slots: [AtomicU64; 16],
    busy: AtomicU64,
    guarded: bool,
}

impl Toy {
    fn new(guarded: bool) -> Self {
        let slots = std::array::from_fn(|at| AtomicU64::new(at as u64));
        Self { len: AtomicU64::new(8), slots, busy: AtomicU64::new(0), guarded }
    }

    /// Whether the list may be used; without a guard it always may.
    fn enter(&self) -> bool {
        let free = !self.guarded || self.busy.load(Relaxed) == 0;
        if free {
            self.busy.store(1, Relaxed);
            std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        }
        free
    }

    fn leave(&self) {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.busy.store(0, Relaxed);
    }

    fn pop(&self) -> Option<u64> {
        self.enter().then(|| {
            let len = self.len.load(Relaxed) - 1;
            let value = self.slots[len as usize].load(Relaxed);
            self.len.store(len, Relaxed);
            self.leave();
            value
        })
    }

    fn push(&self, value: u64) -> bool {
        let entered = self.enter();
        if entered {
            let len = self.len.load(Relaxed);
            self.slots[len as usize].store(value, Relaxed);
            self.len.store(len + 1, Relaxed);
            self.leave();
        }
        entered
    }

    /// What the list and the ledger say together: every one of the eight is on one of the two, once.
    fn check(&self, ledger: &Ledger) -> Result<(), String> {
        if let Some((what, value)) = ledger.broken() {
            return Err(format!("{what:?} {value}"));
        }
        let listed = self.len.load(Relaxed) as usize;
        self.slots[..listed].iter().for_each(|slot| ledger.take(slot.load(Relaxed), 1));
        match (ledger.broken(), ledger.count()) {
            (Some((Broken::HandedOutTwice, value)), _) => Err(format!("{value} is in two places")),
            (Some(other), _) => Err(format!("{other:?}")),
            (None, 8) => Ok(()),
            (None, count) => Err(format!("{count} of 8 are left")),
        }
    }
}

/// Interrupts each step of a pop or a push with pops and pushes; how many steps there were, and what was found wrong.
fn sweep(machine: &Hosted, guarded: bool, pops: bool, handler_pops: bool) -> (u64, Vec<String>) {
    let mut found = Vec::new();
    for step in 0.. {
        let (toy, ledger) = (Toy::new(guarded), Ledger::new(16));
        [0, 1, 2].into_iter().for_each(|_| ledger.take(toy.pop().expect("the list is not in use"), 1));
        let got = AtomicU64::new(u64::MAX);
        let handler = || {
            if handler_pops {
                toy.pop().into_iter().for_each(|value| ledger.take(value, 1));
            } else {
                ledger.give(6, 1);
                if !toy.push(6) {
                    ledger.take(6, 1);
                }
            }
        };
        if !pops {
            ledger.give(7, 1);
        }
        let work = || {
            if pops {
                got.store(toy.pop().expect("the list is not in use"), Relaxed);
            } else {
                assert!(toy.push(7));
            }
        };
        // SAFETY: the handler touches atomics alone.
        let ran = unsafe { machine.interrupt_at_steps(InterruptPlan::Nth(step), SOFT, handler, work) };
        if pops {
            ledger.take(got.load(Relaxed), 1);
        }
        if ran.expect("the host has signals").delivered == 0 {
            return (step, found);
        }
        found.extend(toy.check(&ledger).err());
    }
    unreachable!("the work ends")
}

#[test]
fn a_list_that_nothing_guards_is_found_out() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        for (pops, handler_pops) in [(true, true), (true, false), (false, true), (false, false)] {
            let (steps, found) = sweep(&machine, false, pops, handler_pops);
            println!("{steps} steps, wrong at {}: {found:?}", found.len());
            assert!(!found.is_empty() && (found.len() as u64) < steps);
            let (_, found) = sweep(&machine, true, pops, handler_pops);
            assert_eq!(found, [""; 0], "with a guard nothing is wrong");
        }
    });
}
