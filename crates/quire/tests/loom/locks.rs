//! Spin lock and reader-writer lock: two CPUs never use the value behind them at once unless both only read
//! (L1).

use loom::sync::Arc;
use loom::thread;

use crate::atomic::Orders::{Kept, NotTotal, Relaxed};
use crate::atomic::{self, AtomicU32, Ordering};
use crate::machine::Cpu;
use crate::sync::{Rank, RawLock, RwLock, SpinLock};
use crate::watched::Watched;
use crate::{explore, holds_but_not};

/// Runs `work` on three threads, each a CPU; CPU 2 is the model's own thread.
fn three<T: Send + Sync + 'static>(
    shared: Arc<T>,
    work: impl Fn(&T, &Cpu) + Copy + Send + 'static,
) -> Arc<T> {
    let threads: Vec<_> = (0..2)
        .map(|cpu| {
            let shared = shared.clone();
            thread::spawn(move || work(&shared, &Cpu(cpu)))
        })
        .collect();
    work(&shared, &Cpu(2));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    shared
}

#[test]
fn a_spin_lock_excludes() {
    holds_but_not(&[Relaxed], || {
        let lock = Arc::new(SpinLock::new(Rank::Pool, Watched::new()));
        lock.lock(&Cpu(2)).increment();
        let lock = three(lock, |lock, cpu| lock.lock(cpu).increment());
        assert_eq!(lock.lock(&Cpu(2)).get(), 4);
    });
}

#[test]
fn trying_a_spin_lock_excludes_or_says_no() {
    holds_but_not(&[Relaxed], || {
        let lock = Arc::new(SpinLock::new(Rank::Pool, Watched::new()));
        lock.lock(&Cpu(2)).increment();
        three(lock, |lock, cpu| match lock.try_lock(cpu) {
            Some(value) => value.increment(),
            None => lock.lock(cpu).increment(),
        });
    });
}

#[test]
fn a_lock_without_data_orders_what_it_guards() {
    holds_but_not(&[Relaxed], || {
        let guarded = Arc::new((RawLock::new(), Watched::new()));
        let locked = |(lock, value): &(RawLock, Watched), cpu: &Cpu| {
            lock.lock(cpu, Rank::Block);
            value.increment();
            lock.unlock(cpu, Rank::Block);
        };
        locked(&guarded, &Cpu(2));
        let guarded = three(guarded, locked);
        guarded.0.lock(&Cpu(2), Rank::Block);
        assert_eq!(guarded.1.get(), 4);
    });
}

/// Three CPUs on a reader-writer lock: some write, the others read what was written.
fn readers_and_writers(writes: fn(u32) -> bool) {
    holds_but_not(&[Relaxed, NotTotal], move || {
        let lock = Arc::new(RwLock::new(Rank::AddressSpace, Watched::new()));
        lock.write(&Cpu(2)).increment();
        three(lock, move |lock, cpu| {
            if writes(cpu.0) {
                lock.write(cpu).increment();
            } else {
                assert!(lock.read(cpu).get() > 0);
            }
        });
    });
}

/// The reader and the writer each announce themselves and then look for the other: one of the two must see
/// it.
#[test]
fn readers_and_a_writer_exclude_each_other() {
    readers_and_writers(|cpu| cpu == 2);
}

/// Readers of CPUs that share a slot.
#[test]
fn readers_that_share_a_slot_keep_a_writer_out_until_both_are_gone() {
    readers_and_writers(|cpu| cpu == 1);
}

#[test]
fn writers_exclude_each_other_and_a_reader() {
    readers_and_writers(|cpu| cpu != 0);
}

/// A writer that does not wait announces itself as well before it looks for readers.
#[test]
fn a_writer_that_tries_excludes_readers_or_says_no() {
    holds_but_not(&[Relaxed, NotTotal], || {
        let lock = Arc::new(RwLock::new(Rank::AddressSpace, Watched::new()));
        lock.write(&Cpu(2)).increment();
        three(lock, |lock, cpu| match cpu.0 {
            0 => assert!(lock.read(cpu).get() > 0),
            1 => lock.write(cpu).increment(),
            _ => _ = lock.try_write(cpu).map(|value| value.increment()),
        });
    });
}

/// A value of two parts, which the numbers 0 and 1 name.
type Parts = RwLock<[Watched; 2]>;

/// Changes both parts, admits readers of the other part while it changes `part` again, and then changes both.
fn write_beside_readers(lock: &Parts, cpu: &Cpu, part: u64) {
    let mut value = lock.write(cpu);
    value.iter().for_each(Watched::increment);
    value.admit(&(part..part + 1));
    value[part as usize].increment();
    let value = &mut *value;
    value.iter().for_each(Watched::increment);
}

fn beside_a_writer(work: fn(&Parts, &Cpu)) {
    holds_but_not(&[Relaxed, NotTotal], move || {
        let lock = Arc::new(RwLock::new(Rank::AddressSpace, [Watched::new(), Watched::new()]));
        write_beside_readers(&lock, &Cpu(2), 0);
        three(lock, work);
    });
}

/// A writer that admits readers has its part for itself, and all parts again before it changes them.
#[test]
fn a_writer_admits_only_readers_of_what_it_leaves_alone() {
    beside_a_writer(|lock, cpu| match cpu.0 {
        2 => write_beside_readers(lock, cpu, 0),
        part => assert!(lock.read_beside(cpu, || part.into()..u64::from(part) + 1)[part as usize].get() > 0),
    });
}

/// The range of a second writer is not taken for that of the first.
#[test]
fn a_reader_beside_one_writer_keeps_the_next_one_out() {
    beside_a_writer(|lock, cpu| match cpu.0 {
        0 => assert!(lock.read_beside(cpu, || 1..2)[1].get() > 0),
        writer => write_beside_readers(lock, cpu, u64::from(writer) - 1),
    });
}

/// A reader that names nothing waits for a writer that admits others.
#[test]
fn a_reader_of_everything_is_not_admitted() {
    beside_a_writer(|lock, cpu| match cpu.0 {
        0 => assert!(lock.read_beside(cpu, || 1..2)[1].get() > 0),
        1 => lock.read(cpu).iter().for_each(|part| assert!(part.get() > 0)),
        _ => write_beside_readers(lock, cpu, 0),
    });
}

/// A writer that admits readers, and works on until one has passed. The reader may sleep by then; a wake-up
/// that is missing is a deadlock.
#[test]
fn a_reader_that_sleeps_is_woken_when_it_is_admitted() {
    holds_but_not(&[Relaxed, NotTotal], || {
        let lock = RwLock::new(Rank::AddressSpace, [Watched::new(), Watched::new()]);
        let shared = Arc::new((lock, AtomicU32::new(0)));
        write_beside_readers(&shared.0, &Cpu(2), 0);
        shared.1.store(0, Ordering::SeqCst);
        three(shared, |(lock, passed), cpu| match cpu.0 {
            0 => {
                assert!(lock.read_beside(cpu, || 1..2)[1].get() > 0);
                passed.store(1, Ordering::Release);
                atomic::wake_sleepers();
            }
            1 => {}
            _ => {
                let mut value = lock.write(cpu);
                value.iter().for_each(Watched::increment);
                value.admit(&(0..1));
                while passed.load(Ordering::Acquire) == 0 {
                    atomic::sleep(passed, 0);
                }
            }
        });
    });
}

/// The same behind a reader of everything, which said in the flag that it sleeps, and is not admitted. Both sleep
/// before the writer goes on, which takes more preemptions than are tried where they may sleep or not.
#[test]
fn a_reader_that_sleeps_behind_another_is_woken_when_it_is_admitted() {
    explore(Kept, || {
        let lock: Arc<Parts> = Arc::new(RwLock::new(Rank::AddressSpace, [Watched::new(), Watched::new()]));
        let reader = |cpu: u32, read: fn(&Parts, &Cpu)| {
            let lock = lock.clone();
            let reader = thread::spawn(move || read(&lock, &Cpu(cpu)));
            atomic::wait_for_sleepers(cpu + 1);
            reader
        };
        let mut value = lock.write(&Cpu(2));
        value.iter().for_each(Watched::increment);
        let waits = reader(0, |lock, cpu| lock.read(cpu).iter().for_each(|part| assert!(part.get() > 0)));
        let passes = reader(1, |lock, cpu| assert!(lock.read_beside(cpu, || 1..2)[1].get() > 0));
        value.admit(&(0..1));
        passes.join().unwrap();
        drop(value);
        waits.join().unwrap();
    });
}
