//! Interrupts that arrive by themselves: at calls, at instructions, as time goes by.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange};
use quire::cpu::CpuId;
use quire::platform::{Context, FramePlatform, TablePlatform};
use quire::rank::Rank;
use testkit::panic_message;

use crate::support::machine;

const MIB: u64 = 1 << 20;
const CPU0: CpuId = CpuId(0);
const SOFT: Context = Context::SoftInterrupt;
const HARD: Context = Context::HardInterrupt;

#[test]
fn calls_of_the_platform_are_interrupted_one_by_one() {
    let machine = machine(1);
    let work = || {
        machine.pin();
        machine.lock_taken(Rank::Pool);
        machine.relax();
        machine.lock_dropped(Rank::Pool);
        machine.frames_freed(FrameRange::new(Frame(7), 1));
        machine.online_cpus();
        machine.unpin();
    };
    machine.run_on(CPU0, || {
        let calls = machine.interrupt_at_calls(InterruptPlan::Count, SOFT, || unreachable!(), work).events;
        assert_eq!(calls, 6 + u64::from(cfg!(debug_assertions)));
        for call in 0..calls {
            let context = Cell::new(Context::Task);
            let plan = InterruptPlan::Nth(call);
            let handler = || {
                context.set(machine.context());
                work();
            };
            let ran = machine.interrupt_at_calls(plan, SOFT, handler, work);
            assert_eq!((ran.events, ran.delivered, context.get()), (call + 1, 1, SOFT));
        }
        let late = machine.interrupt_at_calls(InterruptPlan::Nth(calls), SOFT, || unreachable!(), work);
        assert_eq!((late.events, late.delivered), (calls, 0));
        let every = machine.interrupt_at_calls(InterruptPlan::Every(2), HARD, work, work);
        assert_eq!((every.events, every.delivered), (calls, calls / 2));
        assert_eq!(machine.context(), Context::Task);
        // Nothing is left behind.
        let none = machine.interrupt_at_calls(InterruptPlan::Count, SOFT, || (), || ());
        assert_eq!(none.events, 0);
        work();
    });
}

#[test]
fn an_interrupt_waits_until_interrupts_are_on() {
    let machine = machine(2);
    machine.run_on(CPU0, || {
        let came = Cell::new(0);
        let work = || {
            let outer = machine.disable_interrupts();
            machine.relax();
            machine.relax();
            let inner = machine.disable_interrupts();
            machine.restore_interrupts(inner);
            assert_eq!(came.get(), 0);
            machine.restore_interrupts(outer);
            assert_eq!(came.get(), 2, "once, however often it arrived, and once for the call that restores");
            machine.run_on(CpuId(1), || machine.relax());
        };
        let handler = || {
            assert!(!machine.disable_interrupts(), "a hard interrupt runs with interrupts off");
            came.set(came.get() + 1);
        };
        let ran = machine.interrupt_at_calls(InterruptPlan::Every(1), HARD, handler, work);
        assert_eq!((ran.events, ran.delivered), (3, 2), "calls as another CPU do not count");
    });
}

#[test]
fn soft_interrupts_wait_for_soft_and_hard_ones() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let order = std::cell::RefCell::new(String::new());
        let note = |what| order.borrow_mut().push_str(what);
        let soft = || {
            note("(soft ");
            let hard = || note("hard ");
            machine.interrupt_at_calls(InterruptPlan::Nth(0), HARD, hard, || machine.relax());
            note("soft)");
        };
        machine.interrupt_at_calls(InterruptPlan::Nth(0), SOFT, soft, || {
            machine.interrupt(HARD, || machine.relax());
            note("task ");
            machine.relax();
            note(" task");
        });
        assert_eq!(order.into_inner(), "task (soft hard soft) task");
    });
}

#[test]
fn a_handlers_panic_comes_after_the_work() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let done = Cell::new(false);
        let message = panic_message(|| {
            machine.interrupt_at_calls(
                InterruptPlan::Every(1),
                SOFT,
                || panic!("as planned"),
                || {
                    (0..5).for_each(|_| machine.relax());
                    done.set(true);
                },
            )
        });
        assert!(message.contains("as planned") && done.get());
        let held = panic_message(|| {
            let take = || machine.lock_taken(Rank::Slab);
            machine.interrupt_at_calls(InterruptPlan::Nth(0), SOFT, take, || machine.relax())
        });
        assert!(held.contains("Slab"), "{held}");
        let work = panic_message(|| {
            machine.interrupt_at_calls(InterruptPlan::Every(1), SOFT, || (), || panic!("the work itself"))
        });
        assert!(work.contains("the work itself"));
        assert_eq!(machine.context(), Context::Task);
        machine.relax();
    });
    let no_cpu = panic_message(|| machine.interrupt_at_calls(InterruptPlan::Count, SOFT, || (), || ()));
    assert!(no_cpu.contains("no CPU of this machine"), "{no_cpu}");
}

/// H3.
#[test]
fn cpus_go_offline_and_come_back() {
    let machine = machine(3);
    let online = || machine.online_cpus().iter().map(|cpu| cpu.0).collect::<Vec<_>>();
    assert_eq!(online(), [0, 1, 2]);
    machine.set_online(CpuId(1), false);
    assert_eq!(online(), [0, 2]);
    let refused = panic_message(|| machine.run_on(CpuId(1), || ()));
    assert!(refused.contains("offline"), "{refused}");
    let spawned = panic_message(|| machine.spawn_cpus(2, |_| ()));
    assert!(spawned.contains("offline"), "{spawned}");
    machine.run_on(CPU0, || {
        let running = panic_message(|| machine.set_online(CPU0, false));
        assert!(running.contains("taken"), "{running}");
    });
    assert!(panic_message(|| machine.set_online(CpuId(3), false)).contains("does not exist"));
    machine.set_online(CpuId(1), true);
    assert_eq!(online(), [0, 1, 2]);
    machine.run_on(CpuId(1), || assert_eq!(machine.this_cpu(), CpuId(1)));
}

#[test]
fn the_price_of_interrupts_changes_nothing_else() {
    let config = HostedConfig::new(MIB);
    let machine = HostedConfig { interrupt_price: true, ..config }.build().unwrap();
    machine.run_on(CPU0, || {
        let on = machine.disable_interrupts();
        let off = machine.disable_interrupts();
        assert!(on && !off);
        machine.restore_interrupts(off);
        let came = AtomicU64::new(0);
        let handler = || _ = came.fetch_add(1, Ordering::Relaxed);
        let ran = machine.interrupt_at_calls(InterruptPlan::Every(1), HARD, handler, || {
            machine.relax();
            assert_eq!(came.load(Ordering::Relaxed), 0);
            machine.restore_interrupts(on);
        });
        assert_eq!((ran.events, ran.delivered), (2, 2));
    });
}

#[cfg(not(miri))]
mod signals;
#[cfg(not(miri))]
mod watch;
