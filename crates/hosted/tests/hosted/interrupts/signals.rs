//! Interrupts that the host's signals bring: after each instruction, and at a timer's ticks.

use std::time::{Duration, Instant};

use quire::addr::VirtAddr;
use quire::sync::SpinLock;

use super::watch::is_stopped_at_each_instruction;
use super::*;

/// Some work of which it shows how far it has come.
fn count_up(to: &AtomicU64) {
    (0..20).for_each(|_| to.store(to.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
}

fn steps(
    machine: &Hosted,
    plan: InterruptPlan,
    context: Context,
    handler: impl FnMut() + Send,
    body: impl FnOnce(),
) -> (u64, u64) {
    // SAFETY: every handler of these tests touches atomics and the machine alone, or panics without need of the heap
    // on top of work that uses none.
    let ran = unsafe { machine.interrupt_at_steps(plan, context, handler, body) }.expect("signals");
    (ran.events, ran.delivered)
}

#[test]
fn every_instruction_is_interrupted_once() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let count = AtomicU64::new(0);
        let (all, none) = steps(&machine, InterruptPlan::Count, SOFT, || unreachable!(), || count_up(&count));
        assert!((20..2000).contains(&all) && none == 0, "{all} steps");
        let mut seen = [false; 21];
        for step in 0..all {
            count.store(0, Ordering::Relaxed);
            let at = AtomicU64::new(99);
            let handler = || {
                assert_eq!(machine.context(), HARD);
                at.store(count.load(Ordering::Relaxed), Ordering::Relaxed);
            };
            let ran = steps(&machine, InterruptPlan::Nth(step), HARD, handler, || count_up(&count));
            assert_eq!((ran, count.load(Ordering::Relaxed)), ((step + 1, 1), 20));
            seen[at.load(Ordering::Relaxed) as usize] = true;
        }
        assert_eq!(seen, [true; 21], "the handler saw the work at every stage");
        let (again, every) = steps(&machine, InterruptPlan::Every(1), HARD, || (), || count_up(&count));
        assert_eq!((again, every), (all, all), "the same work has the same steps");
    });
}

#[test]
fn steps_of_a_handler_are_interrupted_too() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let (task, soft, hard) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let on_hard = || {
            assert_eq!(machine.context(), HARD);
            count_up(&hard);
        };
        let inner = AtomicU64::new(0);
        let on_soft = || {
            assert_eq!(machine.context(), SOFT);
            let ran = steps(&machine, InterruptPlan::Every(5), HARD, on_hard, || count_up(&soft));
            inner.fetch_add(ran.1, Ordering::Relaxed);
        };
        let (_, delivered) = steps(&machine, InterruptPlan::Every(10), SOFT, on_soft, || count_up(&task));
        let inner = inner.load(Ordering::Relaxed);
        assert!(delivered >= 2 && inner >= 4 * delivered, "{delivered} soft, {inner} hard");
        let counts = [&task, &soft, &hard].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [20, 20 * delivered, 20 * inner]);
    });
}

#[test]
fn no_instruction_is_interrupted_while_interrupts_are_off() {
    for interrupt_price in [false, true] {
        let machine = HostedConfig { interrupt_price, ..HostedConfig::new(MIB) }.build().unwrap();
        machine.run_on(CPU0, || {
            let inside = AtomicU64::new(0);
            let work = || {
                let state = machine.disable_interrupts();
                inside.store(1, Ordering::SeqCst);
                inside.store(0, Ordering::SeqCst);
                machine.restore_interrupts(state);
            };
            let handler = || assert_eq!(inside.load(Ordering::SeqCst), 0);
            let (all, _) = steps(&machine, InterruptPlan::Count, HARD, || (), work);
            for step in 0..all {
                // Each arrives, those inside a little later.
                let ran = steps(&machine, InterruptPlan::Nth(step), HARD, handler, work);
                assert_eq!(ran, (step + 1, 1));
            }
        });
    }
}

/// H7: a handler leaves the flags alone that the interrupted call has saved, the trap flag among them.
#[test]
fn stepping_goes_on_after_handlers_that_turn_interrupts_off_and_on() {
    let machine = HostedConfig { interrupt_price: true, ..HostedConfig::new(MIB) }.build().unwrap();
    machine.run_on(CPU0, || {
        let count = AtomicU64::new(0);
        let switch = || machine.restore_interrupts(machine.disable_interrupts());
        let work = || {
            let outer = machine.disable_interrupts();
            switch();
            machine.restore_interrupts(outer);
            count_up(&count);
        };
        let (all, _) = steps(&machine, InterruptPlan::Count, HARD, || (), work);
        for context in [SOFT, HARD] {
            let (every, _) = steps(&machine, InterruptPlan::Every(1), context, switch, work);
            assert!(every >= all, "{context:?}: {every} of {all} steps");
        }
    });
}

/// H7: the machine's own locks are free whenever an interrupt runs, and no count is lost to one.
#[test]
fn the_machine_survives_interrupts_at_each_of_its_own_steps() {
    let machine = machine(2);
    let lock = SpinLock::new(Rank::Block, ());
    machine.run_on(CPU0, || {
        let work = || {
            let guard = lock.try_lock(&machine);
            drop(guard);
            machine.pin();
            machine.load_root(None);
            machine.unpin();
            assert!(machine.fetch(VirtAddr(0)).is_err());
            machine.frames_freed(FrameRange::new(Frame(3), 2));
        };
        let count = |count: &AtomicU64| {
            count.fetch_add(1, Ordering::Relaxed);
            work();
        };
        let handled = AtomicU64::new(0);
        let (all, _) = steps(&machine, InterruptPlan::Count, HARD, || (), work);
        machine.reset_counters();
        let one_by_one = (0..all).step_by(17).map(InterruptPlan::Nth);
        for plan in one_by_one.chain((1..5).map(InterruptPlan::Every)) {
            steps(&machine, plan, SOFT, || count(&handled), || count(&handled));
        }
        let (counters, handled) = (machine.counters(), handled.load(Ordering::Relaxed));
        println!("{all} steps, {handled} times");
        assert!(handled > all);
        assert_eq!((counters.roots_loaded, counters.frames_freed), (handled, 2 * handled));
        assert_eq!(counters.mmu_faults, handled);
    });
}

/// H6: the source leaves the thread's list before the panic goes on.
#[test]
fn a_panic_in_a_signal_comes_after_the_work() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let count = AtomicU64::new(0);
        let message = panic_message(|| {
            let handler = || assert_ne!(count.load(Ordering::Relaxed), 10, "at ten");
            steps(&machine, InterruptPlan::Every(1), SOFT, handler, || count_up(&count))
        });
        assert!(message.contains("at ten"), "{message}");
        assert_eq!(count.load(Ordering::Relaxed), 20);
        let work = panic_message(|| {
            steps(
                &machine,
                InterruptPlan::Every(1),
                SOFT,
                || (),
                || {
                    assert!(is_stopped_at_each_instruction());
                    panic!("the work itself")
                },
            )
        });
        assert!(work.contains("the work itself"), "{work}");
        assert!(!is_stopped_at_each_instruction());
    });
}

#[test]
fn ticks_arrive_while_the_work_goes_on() {
    let machine = machine(2);
    let ticking = |cpu| {
        machine.run_on(cpu, || {
            let (ticks, inside) = (AtomicU64::new(0), AtomicU64::new(0));
            let handler = || {
                assert_eq!(machine.context(), HARD);
                assert_eq!(inside.load(Ordering::SeqCst), 0, "interrupts were off");
                assert_eq!(machine.this_cpu(), cpu);
                ticks.fetch_add(1, Ordering::Relaxed);
            };
            let body = || {
                let deadline = Instant::now() + Duration::from_secs(20);
                while ticks.load(Ordering::Relaxed) < 50 {
                    assert!(Instant::now() < deadline, "the timer stands still");
                    let state = machine.disable_interrupts();
                    inside.store(1, Ordering::SeqCst);
                    (0..100).for_each(|_| std::hint::spin_loop());
                    inside.store(0, Ordering::SeqCst);
                    machine.restore_interrupts(state);
                }
            };
            // SAFETY: the handler touches atomics and the machine alone.
            let ran = unsafe { machine.with_interrupts(Duration::from_micros(100), HARD, handler, body) };
            let ran = ran.expect("a timer");
            assert_eq!(ran.delivered, ticks.load(Ordering::Relaxed));
            assert!(ran.events >= ran.delivered && ran.delivered >= 50);
            // Nothing ticks any more.
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(ran.delivered, ticks.load(Ordering::Relaxed));
        });
    };
    machine.spawn_cpus(2, ticking);
}

#[test]
fn ticks_of_two_timers_nest() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let (nested, level) = (AtomicU64::new(0), AtomicU64::new(0));
        let on_hard = || _ = nested.fetch_add(level.load(Ordering::Relaxed), Ordering::Relaxed);
        let period = Duration::from_micros(300);
        let wait = || (0..2000).for_each(|_| std::hint::spin_loop());
        let on_soft = || {
            level.store(1, Ordering::Relaxed);
            wait();
            level.store(0, Ordering::Relaxed);
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        let body = || {
            while nested.load(Ordering::Relaxed) < 10 {
                assert!(Instant::now() < deadline, "none nests");
                wait();
            }
        };
        // SAFETY: the handlers touch atomics alone.
        let ran = unsafe {
            machine.with_interrupts(period * 7 / 5, SOFT, on_soft, || {
                machine.with_interrupts(period, HARD, on_hard, body).expect("a timer").delivered
            })
        };
        assert!(ran.expect("a timer").result >= 10);
    });
}

/// Faster than they are handled: the work goes on all the same, and the stack holds.
#[test]
fn ticks_without_end_leave_the_work_its_time() {
    let machine = machine(1);
    let (came, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let run = || {
        machine.run_on(CPU0, || {
            let handler = || {
                came.fetch_add(1, Ordering::Relaxed);
                let start = Instant::now();
                while start.elapsed() < Duration::from_micros(200) {}
            };
            let body = || {
                while came.load(Ordering::Relaxed) < 300 {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            };
            // SAFETY: the handler touches atomics and the clock alone.
            unsafe { machine.with_interrupts(Duration::ZERO, HARD, handler, body) }
                .expect("a timer")
                .delivered
        })
    };
    std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let delivered = small.spawn_scoped(scope, run).expect("a thread").join().expect("no panic");
        assert_eq!(delivered, came.load(Ordering::Relaxed));
    });
    assert!(done.load(Ordering::Relaxed) > 300);
}
