//! A CPU that leaves an address space, keeps its translations and returns, while a flush is under way: it
//! never uses an entry that was changed before a flush that is over.

use std::cell::Cell;

use loom::sync::Arc;
use loom::thread;

use crate::atomic::Orders::{Kept, NotTotal, Relaxed};
use crate::atomic::{AtomicU64, Ordering, fence, turn};
use crate::cpu::{AtomicCpuSet, CpuId};
use crate::{fails, holds_but_not};

#[allow(dead_code)]
#[path = "../../src/tlb/kept.rs"]
mod protocol;

use protocol::KeptCpus;

const CPU: CpuId = CpuId(0);
const OLD: u64 = 1;
const NEW: u64 = 2;

struct Space {
    cpus: AtomicCpuSet,
    kept: KeptCpus,
    entry: AtomicU64,
    /// 1 while the CPU is asked to flush.
    interrupt: AtomicU64,
    /// 1 when the flush is over.
    done: AtomicU64,
}

/// What the CPU and the flush do otherwise than the library.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The flush takes no right away.
    Forgets,
    /// The flush counts as done before the CPU has flushed.
    EndsEarly,
    /// The CPU takes an interrupt after it has decided and before it loads the root.
    TakesInterrupts,
    /// The CPU loads the root before it decides, and again if what it kept is not good.
    LoadsFirst,
    /// The flush empties the set after it has read which CPUs run the address space.
    ClearsLate,
}

/// The CPU: the entry that it has cached, and whether its root is loaded.
struct Cpu<'s> {
    space: &'s Space,
    cached: Cell<Option<u64>>,
    is_loaded: Cell<bool>,
}

impl Cpu<'_> {
    /// An interrupt flushes the loaded root alone.
    fn poll(&self) {
        if self.space.interrupt.load(Ordering::Acquire) == 1 {
            if self.is_loaded.get() {
                self.cached.set(None);
            }
            self.space.interrupt.store(0, Ordering::Release);
        }
    }

    fn access(&self) -> u64 {
        let seen = self.cached.get().unwrap_or_else(|| self.space.entry.load(Ordering::Relaxed));
        self.cached.set(Some(seen));
        seen
    }

    /// The processor translates an address on its own, as far as it has the entry.
    fn walk(&self) {
        let was_done = self.space.done.load(Ordering::Acquire) == 1;
        assert!(!was_done || self.cached.get() != Some(OLD), "a walk uses an entry that was flushed");
    }

    /// `MmContext::switch_to` of another address space, and back.
    fn leave_and_return(&self, wrong: Wrong) {
        let Space { cpus, kept, .. } = self.space;
        kept.leave(CPU);
        self.is_loaded.set(false);
        self.poll();
        cpus.remove(CPU);
        cpus.insert(CPU);
        self.poll();
        let is_good = wrong == Wrong::LoadsFirst || kept.take(CPU);
        if wrong == Wrong::TakesInterrupts {
            self.poll();
        }
        self.load_root(is_good);
        if wrong == Wrong::LoadsFirst && !kept.take(CPU) {
            self.load_root(false);
        }
    }

    fn load_root(&self, keeps: bool) {
        if !keeps {
            self.cached.set(None);
        }
        self.is_loaded.set(true);
        // Loading a root is a serialising instruction.
        fence(Ordering::SeqCst);
        self.walk();
    }
}

fn flush(space: &Space, wrong: Wrong) {
    space.entry.store(NEW, Ordering::Release);
    match wrong {
        Wrong::Forgets | Wrong::ClearsLate => {}
        _ => space.kept.begin_flush(),
    }
    let running = space.cpus.snapshot();
    if wrong == Wrong::ClearsLate {
        space.kept.begin_flush();
    }
    if wrong == Wrong::EndsEarly {
        space.kept.end_flush();
    }
    if running.contains(CPU) {
        space.interrupt.store(1, Ordering::Release);
        while space.interrupt.load(Ordering::Acquire) == 1 {
            turn();
        }
    }
    if !matches!(wrong, Wrong::Forgets | Wrong::EndsEarly) {
        space.kept.end_flush();
    }
    space.done.store(1, Ordering::Release);
}

fn model(wrong: Wrong) {
    let space = Arc::new(Space {
        cpus: AtomicCpuSet::new(),
        kept: KeptCpus::new(),
        entry: AtomicU64::new(OLD),
        interrupt: AtomicU64::new(0),
        done: AtomicU64::new(0),
    });
    // Every atomic is known to the model before threads start.
    space.cpus.insert(CPU);
    space.kept.begin_flush();
    space.kept.end_flush();
    space.entry.store(OLD, Ordering::SeqCst);
    space.interrupt.store(0, Ordering::SeqCst);
    space.done.store(0, Ordering::SeqCst);
    let other = space.clone();
    let thread = thread::spawn(move || flush(&other, wrong));
    let cpu = Cpu { space: &space, cached: Cell::new(Some(OLD)), is_loaded: Cell::new(true) };
    cpu.leave_and_return(wrong);
    let was_done = space.done.load(Ordering::Acquire) == 1;
    let seen = cpu.access();
    assert!(!was_done || seen == NEW, "an entry is used that was flushed");
    while space.done.load(Ordering::Acquire) == 0 {
        cpu.poll();
        turn();
    }
    assert_eq!(cpu.access(), NEW, "an entry is kept that was flushed");
    thread.join().unwrap();
}

/// P4.
#[test]
fn a_cpu_that_returns_uses_nothing_that_was_flushed() {
    holds_but_not(&[Relaxed, NotTotal], || model(Wrong::Nothing));
}

/// P4: the model finds what it looks for.
#[test]
fn steps_that_are_missing_or_late_are_found() {
    fails(Kept, || model(Wrong::Forgets));
    fails(Kept, || model(Wrong::EndsEarly));
    fails(Kept, || model(Wrong::TakesInterrupts));
    fails(Kept, || model(Wrong::LoadsFirst));
    fails(Kept, || model(Wrong::ClearsLate));
}
