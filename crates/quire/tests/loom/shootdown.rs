//! The mailboxes of `quire-interop`: after a sender has waited, no target has a stale translation, and each
//! target that a sender entered gets an interrupt.

use loom::sync::Arc;
use loom::thread;
use quire::addr::{Frame, VirtAddr};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{FlushExtent, FlushRequest};

use crate::atomic::Orders::{Kept, Relaxed};
use crate::atomic::{AtomicBool, AtomicU64, Ordering, turn};
use crate::{fails, holds_but_not};

#[allow(unreachable_pub)]
#[path = "../../../interop/src/shootdown/local.rs"]
mod local;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../interop/src/shootdown/mailbox.rs"]
mod mailbox;

use local::LocalTlb;
use mailbox::Shootdown;

const CPUS: usize = 3;

fn request(sender: usize) -> FlushRequest {
    FlushRequest { root: Frame(sender as u64 + 1), extent: FlushExtent::AddressSpace, tables: false }
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::EMPTY;
    set.insert(CpuId(cpu as u32));
    set
}

struct Machine {
    shootdown: Shootdown<CPUS>,
    /// The entry that each sender changes, and by CPU the cached copy of the other's, or 0.
    entries: [AtomicU64; 2],
    cached: [AtomicU64; CPUS],
    /// By CPU: 1 while an interrupt is pending.
    interrupts: [AtomicU64; CPUS],
    done: [AtomicBool; 2],
}

impl Machine {
    /// Every atomic is known to the model before threads start, and every mailbox was used.
    fn new() -> Arc<Self> {
        let machine = Self {
            shootdown: Shootdown::new(),
            entries: [const { AtomicU64::new(0) }; 2],
            cached: [const { AtomicU64::new(0) }; CPUS],
            interrupts: [const { AtomicU64::new(0) }; CPUS],
            done: [const { AtomicBool::new(false) }; 2],
        };
        for cpu in 0..CPUS {
            let target = (cpu + 1) % CPUS;
            machine.shootdown.start(CpuId(cpu as u32), &only(target), &request(cpu), |_| {});
            machine.handle(target);
            machine.shootdown.wait(CpuId(cpu as u32), &Cpu { machine: &machine, id: cpu });
            machine.cached[cpu].store(0, Ordering::SeqCst);
            machine.interrupts[cpu].store(0, Ordering::SeqCst);
        }
        machine.entries.iter().for_each(|entry| entry.store(1, Ordering::SeqCst));
        machine.done.iter().for_each(|done| done.store(false, Ordering::SeqCst));
        Arc::new(machine)
    }

    fn handle(&self, cpu: usize) {
        self.shootdown.handle(CpuId(cpu as u32), &Cpu { machine: self, id: cpu });
    }

    fn take_interrupt(&self, cpu: usize) {
        if self.interrupts[cpu].swap(0, Ordering::Acquire) != 0 {
            self.handle(cpu);
        }
    }

    fn start(&self, sender: usize, target: usize) {
        self.shootdown.start(CpuId(sender as u32), &only(target), &request(sender), |cpus| {
            // Not a store: `loom` would let it be older than a swap that did not see it.
            cpus.iter().for_each(|cpu| _ = self.interrupts[cpu.index()].fetch_or(1, Ordering::Release));
        });
    }
}

struct Cpu<'m> {
    machine: &'m Machine,
    id: usize,
}

impl LocalTlb for Cpu<'_> {
    fn invlpg(&self, _: VirtAddr) {}

    fn reload(&self) {}

    fn relax(&self) {
        turn();
    }

    fn flush(&self, request: &FlushRequest) {
        let sender = request.root.0 as usize - 1;
        assert!(sender < CPUS && sender != self.id, "CPU {} was asked by {sender}", self.id);
        self.machine.cached[self.id].store(0, Ordering::Relaxed);
    }
}

/// Caches the other's entry, changes its own, flushes the other, and relies on that.
fn flush_each_other(machine: &Machine, id: usize, waits: bool) {
    let other = 1 - id;
    machine.cached[id].store(machine.entries[other].load(Ordering::Relaxed), Ordering::Relaxed);
    machine.entries[id].store(2, Ordering::Relaxed);
    machine.start(id, other);
    if waits {
        machine.shootdown.wait(CpuId(id as u32), &Cpu { machine, id });
    }
    assert_ne!(machine.cached[other].load(Ordering::Relaxed), 1, "CPU {other} keeps the old entry");
    machine.done[id].store(true, Ordering::Release);
    while !machine.done[other].load(Ordering::Acquire) {
        machine.handle(id);
        turn();
    }
}

fn two_senders(waits: bool) {
    let machine = Machine::new();
    let second = machine.clone();
    let thread = thread::spawn(move || flush_each_other(&second, 1, waits));
    flush_each_other(&machine, 0, waits);
    thread.join().unwrap();
}

/// P1: neither takes an interrupt; each serves the other while it waits.
#[test]
fn two_cpus_flush_each_other_while_they_wait() {
    holds_but_not(&[Relaxed], || two_senders(true));
    fails(Kept, || two_senders(false));
}

/// P1: a target whose set was not empty gets no interrupt of its own, and is served all the same.
#[test]
fn an_interrupt_comes_after_every_mark() {
    holds_but_not(&[Relaxed], || {
        let machine = Machine::new();
        let senders = [0, 1].map(|sender| {
            let machine = machine.clone();
            thread::spawn(move || {
                machine.entries[sender].store(2, Ordering::Relaxed);
                machine.start(sender, 2);
            })
        });
        machine.take_interrupt(2);
        senders.into_iter().for_each(|thread| thread.join().unwrap());
        machine.take_interrupt(2);
        for sender in 0..2 {
            assert!(machine.shootdown.is_over(CpuId(sender)), "CPU {sender} was forgotten");
        }
    });
}
