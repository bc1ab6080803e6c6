//! A page table that several address spaces reach, each of which copies it before it stores, or drops its
//! share. The last one owns the table: no other uses it afterwards, and the page that it maps is not stored
//! to while another may read it.

use loom::sync::Arc;
use loom::thread;

use crate::atomic::Orders::{Kept, Relaxed};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::machine::Cpu;
use crate::sync::{Rank, RawLock, SpinLock};
use crate::watched::Watched;
use crate::{fails, holds_but_not};

#[allow(dead_code)]
#[path = "../../src/tlb/sharers.rs"]
mod sharers;

const WRITE: u64 = 2;

/// A table of one leaf, and the page that this maps.
struct Table {
    sharers: AtomicU64,
    lock: RawLock,
    leaf: AtomicU64,
    /// Changed only by the sole owner of the table: when it takes the table over, or when it frees it, so
    /// that its memory is used again.
    memory: Watched,
    page: Watched,
    /// How many leaves map the page.
    maps: SpinLock<u64>,
    /// How often an address space became the sole owner of the table.
    owned: AtomicU32,
}

/// An address space's result for the page.
type Outcome = u64;
const NOTHING: Outcome = 0;
const LEAF: Outcome = 1;

impl Table {
    /// A table that a parent and its child share.
    fn new() -> Arc<Self> {
        let table = Self {
            sharers: AtomicU64::new(0),
            lock: RawLock::new(),
            leaf: AtomicU64::new(0),
            memory: Watched::new(),
            page: Watched::new(),
            maps: SpinLock::new(Rank::Block, 0),
            owned: AtomicU32::new(0),
        };
        // Every atomic is known to the model before threads start.
        table.lock.lock(&Cpu(2), Rank::PageTable);
        table.lock.unlock(&Cpu(2), Rank::PageTable);
        table.leaf.store(1 | WRITE, Ordering::Release);
        *table.maps.lock(&Cpu(2)) = 1;
        table.owned.store(0, Ordering::Relaxed);
        sharers::begin(&table.sharers);
        Arc::new(table)
    }

    /// A load by a CPU that runs an address space which reaches the table.
    fn load(&self) {
        self.memory.get();
        assert_eq!(self.leaf.load(Ordering::Acquire) & 1, 1);
        self.page.get();
    }

    /// The address space that now owns the table may change it.
    fn own(&self) {
        self.memory.increment();
        self.owned.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one leaf less. The page is freed with the last, and used again for something else.
    fn count_down(&self, cpu: &Cpu) {
        let mut maps = self.maps.lock(cpu);
        *maps -= 1;
        if *maps == 0 {
            self.page.increment();
        }
    }

    /// As `Drain::subtree`, of an entry that was taken out and flushed.
    fn drain(&self, cpu: &Cpu) -> Outcome {
        if !sharers::is_last(&self.sharers) {
            // Reads how much memory the entry stands for.
            self.memory.get();
            if sharers::remove(&self.sharers) {
                return NOTHING;
            }
        }
        self.own();
        self.count_down(cpu);
        NOTHING
    }

    /// As `PageTables::copy_table`. Returns the copy's leaf.
    fn copy(&self, cpu: &Cpu) -> u64 {
        self.lock.lock(cpu, Rank::PageTable);
        self.memory.get();
        *self.maps.lock(cpu) += 1;
        let leaf = self.leaf.load(Ordering::Acquire) & !WRITE;
        self.leaf.store(leaf, Ordering::Release);
        self.lock.unlock(cpu, Rank::PageTable);
        leaf
    }

    /// As `PageTables::make_own`. Returns the leaf in the table that the address space then owns.
    fn make_own(&self, cpu: &Cpu) -> u64 {
        if sharers::is_last(&self.sharers) {
            self.own();
            return self.leaf.load(Ordering::Acquire);
        }
        let leaf = self.copy(cpu);
        self.drain(cpu);
        leaf
    }

    /// A store's fault once the address space owns the table: the page is copied unless it is exclusive, too.
    fn store_by(&self, leaf: u64, cpu: &Cpu) -> Outcome {
        if leaf & WRITE != 0 || *self.maps.lock(cpu) == 1 {
            self.page.increment();
            return LEAF;
        }
        self.page.get();
        self.count_down(cpu);
        NOTHING
    }

    fn store(&self, cpu: &Cpu) -> Outcome {
        let leaf = self.make_own(cpu);
        self.store_by(leaf, cpu)
    }

    /// Forks again, and the new child exits; then stores.
    fn fork_and_store(&self, cpu: &Cpu) -> Outcome {
        sharers::add(&self.sharers);
        self.load();
        self.drain(cpu);
        self.store(cpu)
    }
}

/// What an address space does after it has used the table.
type Step = fn(&Table, &Cpu) -> Outcome;

fn two(one: Step, other: Step) {
    let table = Table::new();
    let child = {
        let table = table.clone();
        thread::spawn(move || {
            table.load();
            other(&table, &Cpu(1))
        })
    };
    table.load();
    let left = one(&table, &Cpu(2)) + child.join().unwrap();
    assert_eq!(table.owned.load(Ordering::Relaxed), 1, "the table has no owner, or more than one");
    assert_eq!(*table.maps.lock(&Cpu(2)), left, "a leaf is not counted, or counted twice (invariant 5)");
}

/// Invariant 4.
#[test]
fn the_last_of_two_that_let_go_frees_the_table() {
    holds_but_not(&[Relaxed], || two(Table::drain, Table::drain));
}

/// Invariants 4 and 5.
#[test]
fn one_copies_or_takes_over_what_the_other_lets_go_of() {
    holds_but_not(&[Relaxed], || two(Table::store, Table::drain));
}

#[test]
fn two_that_store_do_not_store_to_the_same_page() {
    holds_but_not(&[Relaxed], || two(Table::store, Table::store));
}

#[test]
fn one_joins_while_another_lets_go_or_copies() {
    holds_but_not(&[Relaxed], || two(Table::fork_and_store, Table::drain));
    holds_but_not(&[Relaxed], || two(Table::fork_and_store, Table::store));
}

/// Wrong: the CPU is flushed after the share was dropped.
#[test]
fn a_table_that_is_used_after_it_was_let_go_is_found() {
    let use_late: Step = |table, cpu| {
        let outcome = table.drain(cpu);
        table.load();
        outcome
    };
    fails(Kept, move || two(use_late, Table::drain));
}

/// Wrong: the share is dropped in two steps.
#[test]
fn shares_that_are_counted_in_two_steps_are_found() {
    let drain: Step = |table, cpu| {
        let sharers = table.sharers.load(Ordering::Acquire);
        if sharers > 0 {
            table.sharers.store(sharers - 1, Ordering::Release);
            return NOTHING;
        }
        table.own();
        table.count_down(cpu);
        NOTHING
    };
    fails(Kept, move || two(drain, drain));
}

/// Wrong: an address space that drops its share does not publish its stores.
#[test]
fn a_share_that_is_given_up_without_order_is_found() {
    let drain: Step = |table, cpu| {
        let one_less = |sharers: u64| sharers.checked_sub(1);
        table.memory.get();
        if table.sharers.fetch_update(Ordering::Acquire, Ordering::Acquire, one_less).is_err() {
            table.own();
            table.count_down(cpu);
        }
        NOTHING
    };
    fails(Kept, move || two(drain, Table::drain));
    fails(Kept, move || two(drain, Table::store));
}

/// Wrong: the last address space does not acquire the stores of the others.
#[test]
fn a_table_that_is_taken_over_without_order_is_found() {
    let store: Step = |table, cpu| {
        if table.sharers.load(Ordering::Relaxed) == 0 {
            table.own();
            let leaf = table.leaf.load(Ordering::Acquire);
            return table.store_by(leaf, cpu);
        }
        table.store(cpu)
    };
    fails(Kept, move || two(store, Table::drain));
}

/// Wrong: the count of a page is checked through a leaf in a shared table.
#[test]
fn a_count_of_one_in_a_shared_table_says_nothing() {
    let store: Step = |table, cpu| {
        if *table.maps.lock(cpu) == 1 {
            table.page.increment();
        }
        table.drain(cpu)
    };
    fails(Kept, move || two(store, Table::drain));
}
