//! References to a file in a table: one task closes the file while others find it there and close it, too.

use loom::sync::Arc;
use loom::thread;

use crate::atomic::AtomicU32;
use crate::atomic::Ordering::Relaxed;
use crate::atomic::Orders::Kept;
use crate::counted::References;
use crate::explore;
use crate::fails;
use crate::machine::Cpu;
use crate::sync::{Rank, SpinGuard, SpinLock};

struct Table {
    references: References,
    /// Whether the table has the file.
    linked: SpinLock<AtomicU32>,
    /// How many tasks freed the file.
    freed: AtomicU32,
}

/// Gives a reference back as the table does.
fn close(table: &Table, cpu: &Cpu) {
    let unlink = |linked: &SpinGuard<'_, AtomicU32, Cpu>| linked.store(0, Relaxed);
    if !table.references.give_back_or_unlink(|| table.linked.lock(cpu), unlink) {
        free(table, cpu);
    }
}

/// Wrong: looks at the count first.
fn look_first(table: &Table, cpu: &Cpu) {
    if table.references.give_back_unless_last() {
        return;
    }
    let linked = table.linked.lock(cpu);
    if table.references.count() == 1 {
        linked.store(0, Relaxed);
    }
    drop(linked);
    free(table, cpu);
}

fn free(table: &Table, cpu: &Cpu) {
    if table.references.give_back() {
        table.freed.fetch_add(1, Relaxed);
        assert_eq!(table.linked.lock(cpu).load(Relaxed), 0, "a file without references is in the table");
    }
}

/// Finds the file in the table, if it is there.
fn walk(table: &Table, cpu: &Cpu, close: fn(&Table, &Cpu)) {
    let linked = table.linked.lock(cpu);
    if linked.load(Relaxed) == 1 {
        table.references.add();
        drop(linked);
        close(table, cpu);
    }
}

fn model(walkers: u32, close: fn(&Table, &Cpu)) {
    let table = Table {
        references: References::one(),
        linked: SpinLock::new(Rank::FileTable, AtomicU32::new(1)),
        freed: AtomicU32::new(0),
    };
    // Every atomic is known to the model before threads start.
    table.linked.lock(&Cpu(0)).store(1, Relaxed);
    table.references.add();
    assert!(table.references.give_back_unless_last());
    table.freed.store(0, Relaxed);
    let table = Arc::new(table);
    let threads: Vec<_> = (1..=walkers)
        .map(|number| {
            let table = table.clone();
            thread::spawn(move || walk(&table, &Cpu(number), close))
        })
        .collect();
    close(&table, &Cpu(0));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(table.freed.load(Relaxed), 1);
}

#[test]
fn the_last_reference_leaves_no_file_in_the_table() {
    explore(Kept, || model(1, close));
    explore(Kept, || model(2, close));
}

#[test]
fn a_last_reference_that_is_only_looked_at_is_found() {
    fails(Kept, || model(1, look_first));
}
