//! Instructions that are looked at before they are executed.

use std::ptr;
use std::sync::atomic::AtomicU32;

use hosted::{Access, Steps};

use super::*;

/// Whether the processor's trap flag is set: it stops this thread after each instruction.
pub(super) fn is_stopped_at_each_instruction() -> bool {
    let flags: u64;
    // SAFETY: H7: reads the flags through the stack, and changes none.
    unsafe { std::arch::asm!("pushfq", "pop {}", out(reg) flags) };
    flags & 0x100 != 0
}

/// What `work` did: its steps, and what of `memory` was touched, as offset, size and direction.
fn watched<T: Sync, R>(
    machine: &Hosted,
    memory: &T,
    work: impl FnOnce() -> R,
) -> (Steps<R>, Vec<(usize, usize, bool)>) {
    watched_to(u64::MAX, machine, memory, work)
}

/// The same for as many instructions.
fn watched_to<T: Sync, R>(
    limit: u64,
    machine: &Hosted,
    memory: &T,
    work: impl FnOnce() -> R,
) -> (Steps<R>, Vec<(usize, usize, bool)>) {
    let start = ptr::from_ref(memory).addr();
    let mut touched = Vec::with_capacity(1 << 16);
    let on_access = |access: Access| {
        if access.at + access.bytes > start && access.at < start + size_of::<T>() && touched.len() < 1 << 16 {
            touched.push((access.at.wrapping_sub(start), access.bytes, access.write));
        }
    };
    // SAFETY: pushes within the capacity take nothing of the heap, and nothing here panics.
    let steps = unsafe { machine.watch_steps(limit, on_access, work) }.expect("signals");
    (steps, touched)
}

#[test]
fn locked_instructions_are_counted_exactly() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let cell = AtomicU64::new(0);
        let plain = || (0..100).for_each(|at| cell.store(at, Ordering::Relaxed));
        let (steps, touched) = watched(&machine, &cell, plain);
        assert_eq!((steps.locked, touched), (0, vec![(0, 8, true); 100]));
        for count in [0, 1, 7, 100] {
            let work = || {
                (0..count).for_each(|_| _ = cell.fetch_add(1, Ordering::Relaxed));
                (0..count).for_each(|_| _ = cell.swap(5, Ordering::Relaxed));
                (0..count).for_each(|_| _ = cell.compare_exchange(5, 5, Ordering::AcqRel, Ordering::Relaxed));
                (0..count).for_each(|_| _ = cell.fetch_or(8, Ordering::SeqCst) & 1);
                plain();
                cell.load(Ordering::Relaxed)
            };
            let (steps, touched) = watched(&machine, &cell, work);
            assert_eq!((steps.locked, steps.result), (4 * count, 99));
            assert!(steps.instructions >= 4 * count + 100, "{}", steps.instructions);
            let writes = touched.iter().filter(|(.., write)| *write).count() as u64;
            assert_eq!(writes, 4 * count + 100);
        }
    });
}

#[test]
fn every_access_is_told_of() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let memory: [AtomicU32; 8] = Default::default();
        let work = || {
            memory[5].store(memory[2].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            memory[5].fetch_and(1, Ordering::Relaxed);
        };
        let (_, touched) = watched(&machine, &memory, work);
        assert_eq!(touched, [(8, 4, false), (20, 4, true), (20, 4, true)]);
        // One that reaches over an end is told of with its whole size.
        let words = ptr::from_ref(&memory).cast::<u64>();
        // SAFETY: inside the array, which this thread alone changes.
        let work = || unsafe { words.byte_add(4).read_unaligned() };
        let (steps, touched) = watched(&machine, &memory[2], work);
        assert_eq!((steps.result, touched), (0, vec![(4_usize.wrapping_sub(8), 8, false)]));
    });
}

#[test]
fn turns_of_repeated_instructions_are_told_of_one_by_one() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let memory = [const { AtomicU64::new(7) }; 16];
        let fill = |count: usize| {
            let at = memory.as_ptr();
            // SAFETY: writes `count` words of the array, which are atomics and this thread's alone.
            unsafe {
                std::arch::asm!("rep stosq", inout("rcx") count => _, inout("rdi") at => _, in("rax") 0_u64)
            };
        };
        let (none, touched) = watched(&machine, &memory, || fill(0));
        assert_eq!(touched, []);
        let (ten, touched) = watched(&machine, &memory, || fill(10));
        assert_eq!(touched, (0..10).map(|at| (8 * at, 8, true)).collect::<Vec<_>>());
        assert!((9..=10).contains(&(ten.instructions - none.instructions)), "{none:?} {ten:?}");
    });
}

#[test]
fn what_the_machine_does_is_left_out() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let cell = AtomicU64::new(0);
        let add = || _ = cell.fetch_add(1, Ordering::Relaxed);
        let work = || {
            add();
            machine.unwatched(|| (0..1000).for_each(|_| add()));
            add();
        };
        let (steps, touched) = watched(&machine, &cell, work);
        assert_eq!((steps.locked, touched.len(), cell.load(Ordering::Relaxed)), (2, 2, 1002));
        assert!(steps.instructions < 200, "{}", steps.instructions);
        // Neither is it where no watch is installed.
        machine.unwatched(add);
        assert_eq!(cell.load(Ordering::Relaxed), 1003);
    });
}

#[test]
fn no_more_is_looked_at_than_was_asked_for() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let cell = AtomicU64::new(0);
        let work = || (0..1000).for_each(|_| _ = cell.fetch_add(1, Ordering::Relaxed));
        let (all, _) = watched(&machine, &cell, work);
        assert_eq!((all.locked, all.cut), (1000, false));
        let (same, _) = watched_to(all.instructions, &machine, &cell, work);
        assert_eq!(same, all);
        let (some, touched) = watched_to(100, &machine, &cell, work);
        assert_eq!((some.instructions, some.cut), (100, true));
        assert!((10..100).contains(&some.locked) && touched.len() as u64 == some.locked, "{some:?}");
        assert_eq!(cell.load(Ordering::Relaxed), 3000, "the work is done to its end");
    });
}

/// The watched work uses the heap, and the watch does not.
#[test]
fn work_that_uses_the_heap_can_be_watched() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let work = || (0..50_u64).map(|number| Box::new(number).to_string()).collect::<Vec<_>>().concat();
        let (steps, _) = watched(&machine, &(), work);
        assert_eq!(steps.result.len(), 90);
        assert!(steps.instructions > 1000);
    });
}

#[test]
fn watched_work_may_be_interrupted_and_may_panic() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let (cell, handled) = (AtomicU64::new(0), AtomicU64::new(0));
        let add = |cell: &AtomicU64| _ = cell.fetch_add(1, Ordering::Relaxed);
        let work = || {
            let handler = || add(&handled);
            // SAFETY: the handler touches an atomic alone.
            let ran = unsafe {
                machine.interrupt_at_steps(InterruptPlan::Every(3), HARD, handler, || {
                    (0..20).for_each(|_| add(&cell))
                })
            };
            ran.expect("signals").delivered
        };
        let (steps, touched) = watched(&machine, &cell, work);
        assert!(steps.result > 0 && steps.result == handled.load(Ordering::Relaxed));
        assert_eq!(touched.len(), 20, "the handler's own instructions are not looked at");
        assert!(steps.locked >= 20);
        let message = panic_message(|| {
            watched(&machine, &cell, || {
                assert!(is_stopped_at_each_instruction());
                panic!("the work itself")
            });
        });
        assert!(message.contains("the work itself"), "{message}");
        assert!(!is_stopped_at_each_instruction());
    });
}
