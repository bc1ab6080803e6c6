//! Debug builds refuse calls that may sleep or flush other CPUs, from where these must not be made.

use hosted::{Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::platform::{Context, FramePlatform};
use quire::rank::Rank;
use quire::sync::Pinned;
use quire::vm::{Access, Mm};
use testkit::panic_message;

use crate::vm::world::{MIB, anonymous, run, small};
use crate::watched::Watched;

const BASE: VirtAddr = VirtAddr(0x1000_0000);

/// An address space with a mapping, on which each of these calls would succeed.
fn with_mapping(test: impl FnOnce(&Hosted, &Mm<'_, Hosted>)) {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE.0, MIB)).unwrap();
            test(machine, mm);
        });
    });
}

#[test]
fn a_fault_in_an_interrupt_is_refused() {
    with_mapping(|machine, mm| {
        for context in [Context::SoftInterrupt, Context::HardInterrupt] {
            let message = panic_message(|| machine.interrupt(context, || mm.fault(BASE, Access::Write)));
            let expected = format!("was made in a {context:?}: only a task may make it");
            assert!(message.ends_with(&expected), "{message}");
        }
        assert_eq!(mm.rss().anon, 0, "nothing was mapped");
        mm.fault(BASE, Access::Write).unwrap();
    });
}

#[test]
fn other_callers_that_must_not_wait_are_refused() {
    with_mapping(|machine, mm| {
        let fault = || mm.fault(BASE, Access::Write);
        let message = panic_message(|| {
            let _pinned = Pinned::new(machine);
            fault()
        });
        assert!(message.contains("a pinned task made a call that may sleep"), "{message}");
        let state = machine.disable_interrupts();
        let message = panic_message(fault);
        machine.restore_interrupts(state);
        assert!(message.ends_with("was made with interrupts off"), "{message}");
        machine.lock_taken(Rank::Families);
        let message = panic_message(fault);
        machine.lock_dropped(Rank::Families);
        assert!(message.contains("a task that holds a lock made a call that may sleep"), "{message}");
    });
}

/// A platform that says whether interrupts are on needs no check of its own for that.
#[test]
fn the_default_check_refuses_interrupts_and_tasks_without_them() {
    let machine = HostedConfig::new(64 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let watched = Watched::new(&machine);
        let state = machine.disable_interrupts();
        let message = panic_message(|| watched.might_sleep());
        machine.restore_interrupts(state);
        assert!(message.ends_with("was made with interrupts off"), "{message}");
        let message = panic_message(|| machine.interrupt(Context::SoftInterrupt, || watched.might_sleep()));
        assert!(message.ends_with("SoftInterrupt: only a task may make it"), "{message}");
        watched.might_sleep();
    });
}

/// One of each file of methods, and those that are easily called from a scheduler.
#[test]
fn other_calls_in_an_interrupt_are_refused() {
    with_mapping(|machine, mm| {
        let refused = |call: &dyn Fn()| {
            let message = panic_message(|| machine.interrupt(Context::HardInterrupt, call));
            assert!(message.contains("HardInterrupt: only a task may make it"), "{message}");
        };
        refused(&|| {
            _ = mm.mmap(&anonymous(BASE.0, MIB));
        });
        refused(&|| {
            _ = mm.munmap(BASE, MIB);
        });
        refused(&|| drop(mm.fork()));
        refused(&|| drop(mm.register_secondary()));
        refused(&|| {
            _ = mm.rss();
        });
        refused(&|| {
            _ = mm.userfault_unregister(BASE, MIB);
        });
        refused(&|| mm.set_stack_limit(MIB));
        machine.interrupt(Context::HardInterrupt, || {
            mm.switch_to(mm);
            assert_eq!((mm.root(), mm.number()), (mm.root(), mm.number()));
        });
    });
}
