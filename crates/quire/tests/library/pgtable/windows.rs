//! Windows of a few instructions without a call of the platform. A CPU that starts to run an address space,
//! stops, or switches to another one, is interrupted after every instruction by an access of its own and by a
//! verb of another CPU. A verb is interrupted at every call by a CPU that starts to run the address space.

use hosted::{Hosted, HostedConfig, InterruptPlan, OnViolation};
use quire::addr::{Order, VirtAddr};
use quire::arch::PagingMode;
use quire::cpu::CpuId;
use quire::platform::Context;
use quire::tlb::MmContext;

use crate::pgtable::support::*;
use testkit::Share;

const CPU1: CpuId = CpuId(1);
const CPU2: CpuId = CpuId(2);

fn recording() -> HostedConfig {
    HostedConfig { on_violation: OnViolation::Record, ..small_machine() }
}

/// Whether CPU 1 still reads the page.
fn reads(machine: &Hosted) -> bool {
    machine.read(VirtAddr(GIB), &mut [0]).is_ok()
}

/// What CPU 1 does, with the other address space at hand.
type Switch = fn(&Hosted, &MmContext, &MmContext);

const SWITCHES: [(&str, bool, Switch); 4] = [
    ("in", false, |machine, context, _| context.switch_in(machine)),
    ("out", true, |machine, context, _| context.switch_out(machine)),
    ("to another", true, |machine, context, other| {
        context.switch_to(other, machine);
    }),
    ("from another", false, |machine, context, other| {
        other.switch_to(context, machine);
    }),
];

/// One switch that is interrupted after instruction `number`. Returns whether there is such an instruction.
fn switched(machine: HostedConfig, (name, inside, switch): (&str, bool, Switch), number: u64) -> bool {
    let (mut delivered, keeps) = (0, machine.keeps_translations);
    with_space(machine, |machine, allocator, context| {
        let other = Tables::create(allocator, PagingMode::FourLevel).expect("no root");
        populate(machine, allocator, context, range(GIB, 4096), Order::FRAME);
        machine.run_on(CPU1, || {
            if keeps {
                context.switch_in(machine);
                assert!(reads(machine), "to be kept");
                context.switch_out(machine);
            }
            match (inside, name.contains("another")) {
                (true, _) => context.switch_in(machine),
                (false, true) => other.switch_in(machine),
                (false, false) => {}
            }
            let interrupted = || {
                // CPU 1 caches what it can reach now, as speculation does too; then CPU 2 unmaps it.
                reads(machine);
                machine.run_on(CPU2, || unmap_all(allocator, context, range(GIB, 4096)));
            };
            // SAFETY: H7: the switch uses neither the heap nor locks of the standard library outside of the
            // machine's own steps, which delay interrupts.
            let ran = unsafe {
                let plan = InterruptPlan::Nth(number);
                machine.interrupt_at_steps(plan, Context::HardInterrupt, interrupted, || {
                    switch(machine, context, &other)
                })
            };
            delivered = ran.expect("signals").delivered;
            assert!(delivered == 0 || !reads(machine), "{name}, instruction {number}: the page is gone");
            machine.check_translations();
            for context in [context, &other] {
                if context.running().contains(CPU1) {
                    context.switch_out(machine);
                }
            }
        });
        if delivered == 0 {
            unmap_all(allocator, context, range(GIB, 4096));
        }
        Tables::destroy(allocator, other);
        assert_eq!(machine.violations(), [], "{name}, instruction {number}");
    });
    delivered > 0
}

/// A short run takes every second instruction, and of the two directions of a switch other ones.
#[test]
fn a_cpu_that_switches_is_flushed_or_reaches_nothing_after_every_instruction() {
    for (kind, switch) in (0..).zip(SWITCHES) {
        let name = switch.0;
        let share = Share::one_of(2, kind);
        let met = share.numbers().take_while(|&number| switched(recording(), switch, number)).count();
        println!("{name}: {met} instructions");
        assert!(met as u64 * share.step > 20, "{name}: {met} instructions");
    }
}

/// P4: nor does one that kept translations of the address space and returns.
#[test]
fn a_cpu_that_returns_is_flushed_or_starts_afresh_after_every_instruction() {
    for (kind, switch) in (0..).zip(SWITCHES.into_iter().filter(|(_, inside, _)| !inside)) {
        let share = Share::one_of(2, kind);
        let interrupted = |&number: &u64| switched(recording().keeping_translations(), switch, number);
        let met = share.numbers().take_while(interrupted).count();
        println!("{}: {met} instructions", switch.0);
        assert!(met as u64 * share.step > 30, "{}: {met} instructions", switch.0);
    }
}

/// A CPU that starts to run the address space at any call of an unmapping finds the page unmapped, or is
/// flushed.
#[test]
fn a_cpu_that_comes_at_any_call_of_an_unmapping_keeps_nothing() {
    let mut calls = 0;
    loop {
        let mut delivered = 0;
        with_space(recording(), |machine, allocator, context| {
            populate(machine, allocator, context, range(GIB, 8 * 4096), Order::FRAME);
            running(machine, context, &[0, 2], || {
                let come = || {
                    machine.run_on(CPU1, || {
                        context.switch_in(machine);
                        reads(machine);
                    });
                };
                let plan = InterruptPlan::Nth(calls);
                let ran = machine.interrupt_at_calls(plan, Context::HardInterrupt, come, || {
                    unmap_all(allocator, context, range(GIB, 8 * 4096));
                });
                delivered = ran.delivered;
                if delivered > 0 {
                    assert!(!machine.run_on(CPU1, || reads(machine)), "call {calls}: the page is gone");
                    machine.run_on(CPU1, || context.switch_out(machine));
                }
                machine.check_translations();
            });
            assert_eq!(machine.violations(), [], "call {calls}");
        });
        if delivered == 0 {
            break;
        }
        calls += 1;
    }
    assert!(calls > 10, "{calls} calls");
}
