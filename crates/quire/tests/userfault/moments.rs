//! An answer, or a verb, at every moment of a fault: before it has looked, between its looks, and when it sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hosted::{Hosted, InterruptPlan};
use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::platform::Context;
use quire::vm::{Access, File, Sharing};

use crate::support::{BASE, Handler, MISSING, PAGE, WAKE, copy, handler, machine_of, of_file, register};
use crate::world::{Manager, Space};

/// The rounds of two CPUs: `asked` is the last for which the fault wants something done, `done` the last for which it was.
struct Rounds {
    asked: AtomicU64,
    done: AtomicU64,
}

/// Waits for something, but not for ever; whether it came.
fn within(time: Duration, what: impl Fn() -> bool) -> bool {
    let end = Instant::now() + time;
    while !what() {
        if Instant::now() > end {
            return false;
        }
        std::hint::spin_loop();
    }
    true
}

struct Scene<'s, 'm> {
    mm: &'s Space<'m>,
    file: &'s File<'m, Hosted>,
    handler: &'s Handler<'m>,
}

/// Lets CPU 0 fault on a page of nameless memory that is missing, while CPU 1 does `act`, once, at the first call of the platform
/// that the fault makes, in another round at the second, and so on; what is under way then waits for it for a moment. Nobody
/// reads the event. Whatever the moment, the fault ends as `ends` says.
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
    let file = manager.nameless(2 * PAGE).unwrap();
    let handler = handler(manager);
    mm.mmap(&of_file(&file, Sharing::Shared, BASE, 2 * PAGE)).unwrap();
    register(&mm, &handler, BASE, 2 * PAGE, MISSING);
    let scene = Scene { mm: &mm, file: &file, handler: &handler };
    let rounds = Rounds { asked: AtomicU64::new(0), done: AtomicU64::new(0) };
    let mut both = machine.spawn_cpus(2, |cpu| {
        if cpu.0 == 1 {
            // Where no call comes any more since the fault sleeps, this is what ends it.
            within(Duration::from_millis(15), || rounds.asked.load(Ordering::SeqCst) == 1);
            act(&scene);
            rounds.done.store(1, Ordering::SeqCst);
            return None;
        }
        let ask = || {
            rounds.asked.store(1, Ordering::SeqCst);
            // A verb that must wait for the fault's lock is not done before it.
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
