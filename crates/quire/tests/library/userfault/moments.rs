//! An answer, or a verb, at every moment of a fault: before it has looked, between its looks, and when it
//! sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hosted::{Hosted, InterruptPlan};
use quire::addr::VirtAddr;
use quire::error::{FaultError, UserfaultError};
use quire::platform::Context;
use quire::vm::{Access, File, Sharing, TakenEvent, UserfaultChanges, UserfaultEvent};

use crate::userfault::handlers::until;
use crate::userfault::support::{
    BASE, Handler, MISSING, PAGE, WAKE, copy, handler, machine_of, of_file, register,
};
use crate::userfault::world::{Manager, Space, anonymous};
use testkit::within;

/// The rounds of two CPUs: `asked` is the last for which the fault wants something done, `done` the last for
/// which it was.
struct Rounds {
    asked: AtomicU64,
    done: AtomicU64,
}

struct Scene<'s, 'm> {
    mm: &'s Space<'m>,
    file: &'s File<'m, Hosted>,
    handler: &'s Handler<'m>,
}

/// CPU 0 faults on a missing page of shared anonymous memory. CPU 1 does `act` once: at the first call of the
/// platform in the fault, in another round at the second, and so on; the fault waits for a moment then. No
/// handler reads the event. Whatever the moment, the fault ends with `ends`.
fn at_every_call(name: &str, act: impl Fn(&Scene<'_, '_>) + Sync, ends: Result<(), FaultError>) {
    machine_of(name, 2, |machine, manager| {
        let mut round = 0;
        loop {
            let (calls, outcome) = one_round(machine, manager, round, &act);
            assert_eq!(outcome, ends, "{name} at call {round}");
            round += 1;
            if round > calls {
                break;
            }
        }
        assert!(round > 10, "{name}: a fault makes more calls than {round}");
    });
}

fn one_round(
    machine: &Hosted,
    manager: &Manager<'_>,
    round: u64,
    act: &(impl Fn(&Scene<'_, '_>) + Sync),
) -> (u64, Result<(), FaultError>) {
    let mm = manager.new_mm().unwrap();
    let file = manager.shmem(2 * PAGE).unwrap();
    let handler = handler(manager);
    mm.mmap(&of_file(&file, Sharing::Shared, BASE, 2 * PAGE)).unwrap();
    register(&mm, &handler, BASE, 2 * PAGE, MISSING);
    let scene = Scene { mm: &mm, file: &file, handler: &handler };
    let rounds = Rounds { asked: AtomicU64::new(0), done: AtomicU64::new(0) };
    let mut both = machine.spawn_cpus(2, |cpu| {
        if cpu.0 == 1 {
            // When the fault sleeps and makes no more calls, this ends it.
            within(Duration::from_millis(15), || rounds.asked.load(Ordering::SeqCst) == 1);
            act(&scene);
            rounds.done.store(1, Ordering::SeqCst);
            return None;
        }
        let ask = || {
            rounds.asked.store(1, Ordering::SeqCst);
            // A verb that must wait for the fault's lock finishes only after it.
            within(Duration::from_millis(5), || rounds.done.load(Ordering::SeqCst) == 1);
        };
        let fault = || mm.fault(VirtAddr(BASE + PAGE), Access::Read).map(drop);
        let plan = InterruptPlan::Nth(round);
        let ran = machine.interrupt_at_calls(plan, Context::HardInterrupt, ask, fault);
        Some((ran.events, ran.result))
    });
    both.swap_remove(0).expect("CPU 0 says how it ended")
}

/// Invariant U1.
#[test]
fn an_answer_at_any_moment_is_found() {
    at_every_call("copy", |scene| _ = copy(scene.mm, BASE + PAGE, 1, WAKE).unwrap(), Ok(()));
    let zero = |scene: &Scene<'_, '_>| {
        scene.mm.userfault_zeropage(VirtAddr(BASE), 2 * PAGE, WAKE).all().unwrap();
    };
    at_every_call("zeropage", zero, Ok(()));
}

/// Invariant U1.
#[test]
fn the_end_of_a_registration_at_any_moment_is_found() {
    let unregister =
        |scene: &Scene<'_, '_>| scene.mm.userfault_unregister(VirtAddr(BASE + PAGE), PAGE).unwrap();
    at_every_call("unregister", unregister, Ok(()));
    at_every_call("close", |scene| scene.handler.close(), Err(FaultError::NoHandler));
}

/// Invariant U1.
#[test]
fn what_takes_the_page_away_at_any_moment_is_found() {
    let unmap = |scene: &Scene<'_, '_>| scene.mm.munmap(VirtAddr(BASE), 2 * PAGE).unwrap();
    at_every_call("munmap", unmap, Err(FaultError::NotMapped));
    at_every_call("truncate", |scene| scene.file.truncate(PAGE).unwrap(), Err(FaultError::BeyondEnd));
}

/// During a change answers are refused, and the change is read before any fault.
#[test]
fn a_change_is_read_before_the_faults_that_cannot_be_answered() {
    machine_of("order", 3, |machine, manager| {
        let (mut round, mut refused) = (0, 0);
        loop {
            let (calls, seen) = unmap_with_a_look_between(machine, manager, round);
            (round, refused) = (round + 1, refused + u64::from(seen));
            if round > calls {
                break;
            }
        }
        assert!(refused > 0, "no look came while the change was under way");
    });
}

/// CPU 0 unmaps, and is held up at one of its calls while CPU 1, the handler, reads an event and answers. CPU
/// 2 waits for a page all the time. Returns how many calls there are, and whether an answer was refused.
fn unmap_with_a_look_between(machine: &Hosted, manager: &Manager<'_>, round: u64) -> (u64, bool) {
    let mm = manager.new_mm().unwrap();
    let handler = manager.userfault(UserfaultChanges::ALL).unwrap();
    mm.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
    register(&mm, &handler, BASE, 8 * PAGE, MISSING);
    let rounds = Rounds { asked: AtomicU64::new(0), done: AtomicU64::new(0) };
    let over = AtomicU64::new(0);
    let mut all = machine.spawn_cpus(3, |cpu| match cpu.0 {
        0 => {
            until(|| handler.info().pending == 1);
            let held = AtomicU64::new(0);
            let ask = || {
                rounds.asked.store(1, Ordering::SeqCst);
                let done = within(Duration::from_millis(25), || rounds.done.load(Ordering::SeqCst) == 1);
                held.store(u64::from(done), Ordering::SeqCst);
            };
            let unmap = || mm.munmap(VirtAddr(BASE), 4 * PAGE).unwrap();
            let plan = InterruptPlan::Nth(round);
            let ran = machine.interrupt_at_calls(plan, Context::HardInterrupt, ask, unmap);
            over.store(1, Ordering::SeqCst);
            (ran.events, held.load(Ordering::SeqCst) == 1, false)
        }
        1 => {
            // The event is held, and not put back, while the answer is tried.
            let held = || rounds.asked.load(Ordering::SeqCst) == 1;
            until(|| held() || handler.info().changes == 1);
            let event = handler.next_event().map(TakenEvent::keep);
            let tried = mm.userfault_zeropage(VirtAddr(BASE + 5 * PAGE), PAGE, WAKE);
            let refused = tried.stopped == Some(UserfaultError::Again);
            rounds.done.store(1, Ordering::SeqCst);
            while over.load(Ordering::SeqCst) == 0 {
                drop(handler.next_event());
            }
            assert_eq!(copy(&mm, BASE + 6 * PAGE, 1, WAKE), Ok(PAGE));
            (0, refused, matches!(event, Some(UserfaultEvent::Fault(_))))
        }
        _ => {
            assert_eq!(mm.fault(VirtAddr(BASE + 6 * PAGE), Access::Read).map(drop), Ok(()));
            (0, false, false)
        }
    });
    let (_, refused, fault_first) = all.swap_remove(1);
    // An answer that took longer than CPU 0 was held up may have started before the change.
    let (calls, held, _) = all.swap_remove(0);
    assert!(!(held && refused && fault_first), "a fault was read that could not be answered");
    (calls, held && refused)
}
