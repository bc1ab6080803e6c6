use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Slot, wait_for_all};

/// A virtual CPU that offers its processor between accesses is hardly ever preempted inside one. Each time that it is, the
/// wait takes until the scheduler runs it again: on two busy processors this made the test take half a minute.
const ACCESSES_PER_YIELD: u32 = 1000;

#[test]
fn accesses_under_way_are_waited_for_and_no_later_one() {
    let slots = [Slot::default(), Slot::default()];
    wait_for_all(&slots);
    let inside = slots[1].enter();
    let waited = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for_all(&slots);
            waited.store(1, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(waited.load(Ordering::SeqCst), 0, "an access is still under way");
        drop(inside);
    });
    assert_eq!(waited.load(Ordering::SeqCst), 1);
    wait_for_all(&slots);
}

/// A virtual CPU that is always inside some access blocks no wait, and no access after the wait uses old
/// entries.
#[test]
fn what_is_taken_away_is_not_used_after_the_wait() {
    let slots = [Slot::default(), Slot::default()];
    let (entry, stop) = (AtomicU64::new(1), AtomicU64::new(0));
    // A place for each value of the entry; zero once it may not be used any more.
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let live: Vec<AtomicU64> = (0..rounds + 2).map(|at| AtomicU64::new(u64::from(at == 1))).collect();
    std::thread::scope(|scope| {
        for slot in &slots {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    for _ in 0..ACCESSES_PER_YIELD {
                        let _inside = slot.enter();
                        let at = entry.load(Ordering::Acquire);
                        assert_eq!(live[at as usize].load(Ordering::Acquire), 1, "used after the wait");
                    }
                    std::thread::yield_now();
                }
            });
        }
        for round in 2..rounds + 2 {
            live[round].store(1, Ordering::Release);
            entry.store(round as u64, Ordering::Release);
            wait_for_all(&slots);
            live[round - 1].store(0, Ordering::Release);
        }
        stop.store(1, Ordering::Relaxed);
    });
}

#[test]
fn a_slot_is_one_threads() {
    let slot = Slot::default();
    assert!(slot.take());
    assert!(!slot.take());
    slot.give_back();
    assert!(slot.take());
}
