//! Handlers that are many, slow, dead, wrong, or gone.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::error::{FaultError, MmError, TooManyHandlers, UserfaultError};
use quire::limits::{MAX_USERFAULTS, USERFAULT_SLOTS};
use quire::vm::{AnswerMode, UserfaultChanges, UserfaultEvent, UserfaultFault};

use crate::userfault::support::{
    BASE, MISSING, OnDrop, PAGE, PROTECT, WAKE, copy, fault_of, handler, machine_of, marked,
    program_and_handler, register,
};
use crate::userfault::world::{MIB, anonymous, load, run, store, with_manager};
use testkit::seed;

pub(crate) fn until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

#[test]
fn more_threads_wait_than_there_are_places() {
    const THREADS: usize = USERFAULT_SLOTS + 8;
    machine_of("places", THREADS + 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE, MIB, MISSING);
        let (ended, events) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let full = AtomicBool::new(false);
        machine.spawn_cpus(THREADS + 2, |cpu| {
            let number = u64::from(cpu.0);
            if cpu.index() < THREADS {
                mm.switch_in();
                assert_eq!(load(machine, &mm, BASE + number * PAGE), Ok(number));
                mm.switch_out();
                if ended.fetch_add(1, Ordering::SeqCst) == THREADS - 1 {
                    handler.close();
                }
                return;
            }
            // The first thread that sees all places taken tells the other.
            until(|| full.fetch_or(handler.info().pending == USERFAULT_SLOTS, Ordering::SeqCst));
            let mut places = HashSet::new();
            while let Some(event) = handler.wait_event() {
                let fault = fault_of(event.keep());
                events.fetch_add(1, Ordering::SeqCst);
                places.insert(fault.ticket.place());
                assert_eq!(copy(&mm, fault.addr.0, (fault.addr.0 - BASE) / PAGE, WAKE), Ok(PAGE));
            }
            assert!(places.iter().all(|&place| (place as usize) < USERFAULT_SLOTS));
        });
        assert_eq!(events.load(Ordering::SeqCst), THREADS, "one event for each thread");
    });
}

#[test]
fn each_event_goes_to_one_of_many_handlers_and_answers_come_late_twice_and_in_any_order() {
    const PROGRAMS: usize = 4;
    const PAGES: u64 = 120;
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    machine_of("many", PROGRAMS + 3, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
        register(&mm, &handler, BASE, PROGRAMS as u64 * PAGES * PAGE, MISSING);
        let (ended, tickets) = (AtomicUsize::new(0), Mutex::new(HashSet::new()));
        let network: Mutex<Vec<UserfaultFault>> = Mutex::new(Vec::new());
        let program = |number: u64| {
            mm.switch_in();
            for page in number * PAGES..(number + 1) * PAGES {
                assert_eq!(load(machine, &mm, BASE + page * PAGE + 8), Ok(page));
            }
            mm.switch_out();
            if ended.fetch_add(1, Ordering::SeqCst) == PROGRAMS - 1 {
                handler.close();
            }
        };
        let ask = || {
            while let Some(event) = handler.wait_event() {
                let fault = fault_of(event.keep());
                assert!(tickets.lock().unwrap().insert(fault.ticket), "an event was read twice");
                network.lock().unwrap().push(fault);
            }
        };
        let deliver = || {
            let mut rng = fastrand::Rng::with_seed(first);
            while ended.load(Ordering::SeqCst) < PROGRAMS {
                let mut waiting = network.lock().unwrap();
                let chosen = rng.usize(..waiting.len().max(1));
                let fault = (chosen < waiting.len()).then(|| waiting.swap_remove(chosen));
                drop(waiting);
                let Some(fault) = fault else {
                    std::thread::yield_now();
                    continue;
                };
                if rng.bool() {
                    std::thread::sleep(Duration::from_micros(rng.u64(..200)));
                }
                assert_eq!(copy(&mm, BASE + 3 * MIB, 0, WAKE), Err(UserfaultError::NotRegistered));
                assert_eq!(copy(&mm, fault.addr.0, (fault.addr.0 - BASE) / PAGE, WAKE), Ok(PAGE));
                assert_eq!(copy(&mm, fault.addr.0, 999, WAKE), Err(UserfaultError::Exists));
            }
        };
        machine.spawn_cpus(PROGRAMS + 3, |cpu| match cpu.index() {
            number if number < PROGRAMS => program(number as u64),
            PROGRAMS => deliver(),
            _ => ask(),
        });
        assert_eq!(tickets.into_inner().unwrap().len() as u64, PROGRAMS as u64 * PAGES, "one for each fault");
        mm.validate().unwrap();
    });
}

#[test]
fn what_a_dead_handler_thread_has_read_is_read_again() {
    machine_of("dead thread", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE, MIB, MISSING);
        let reads = AtomicU64::new(0);
        machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                let _ends = OnDrop(|| handler.close());
                mm.switch_in();
                assert_eq!(load(machine, &mm, BASE), Ok(7));
                mm.switch_out();
                return;
            }
            let read = || {
                reads.fetch_add(1, Ordering::SeqCst);
                handler.wait_event().unwrap()
            };
            // A handler dies while it holds an event: unwinding puts the event back.
            let first = read();
            let fault = fault_of(*first);
            assert_eq!((handler.info().pending, handler.info().taken), (0, 1));
            let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _held = first;
                std::panic::resume_unwind(Box::new("the handler's connection broke"));
            }));
            assert!(died.is_err());
            assert_eq!((handler.info().pending, handler.info().taken), (1, 0));
            // A handler has kept an event, and another knows which one.
            assert_eq!(fault_of(read().keep()), fault, "the same thread at the same place");
            assert!(handler.next_event().is_none());
            assert!(handler.requeue(&fault));
            assert!(!handler.requeue(&fault), "it is not taken now");
            // A handler has kept an event, and no other knows which one.
            assert_eq!(fault_of(read().keep()), fault);
            assert_eq!(handler.requeue_all(), 1);
            assert_eq!(fault_of(read().keep()), fault);
            assert_eq!(copy(&mm, BASE, 7, WAKE), Ok(PAGE));
            assert!(!handler.requeue(&fault), "it was answered");
            assert!(handler.wait_event().is_none());
        });
        assert_eq!(reads.load(Ordering::SeqCst), 4);
    });
}

/// A handler that sleeps costs a call of the platform only when there is an event to read.
#[test]
fn a_handler_that_sleeps_is_woken_for_what_was_put_back_and_not_for_nothing() {
    machine_of("put back", 3, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE, MIB, MISSING);
        let (step, taken) = (AtomicUsize::new(0), Mutex::new(None));
        let (waits, wakes) = (|| machine.counters().waits, || machine.counters().wakes);
        machine.spawn_cpus(3, |cpu| match cpu.0 {
            0 => {
                until(|| step.load(Ordering::SeqCst) >= 1);
                mm.switch_in();
                assert_eq!(load(machine, &mm, BASE), Ok(5));
                mm.switch_out();
                step.store(3, Ordering::SeqCst);
            }
            1 => {
                let _ends = OnDrop(|| {
                    step.store(3, Ordering::SeqCst);
                    handler.close();
                });
                until(|| waits() == 1);
                assert_eq!((handler.requeue_all(), wakes()), (0, 0), "there was nothing");
                step.store(1, Ordering::SeqCst);
                until(|| waits() == 3);
                let fault = taken.lock().unwrap().take().expect("it was read");
                assert_eq!((handler.requeue(&fault), wakes()), (true, 2), "one for the fault, one for this");
                step.store(2, Ordering::SeqCst);
                until(|| step.load(Ordering::SeqCst) == 3);
            }
            _ => {
                *taken.lock().unwrap() = Some(fault_of(handler.wait_event().unwrap().keep()));
                // Once both wait, no wake-up is under way to this handler.
                until(|| waits() == 2);
                let fault = fault_of(handler.wait_event().unwrap().keep());
                until(|| step.load(Ordering::SeqCst) >= 2);
                assert_eq!(copy(&mm, fault.addr.0, 5, WAKE), Ok(PAGE));
            }
        });
    });
}

#[test]
fn answers_without_a_wake_up_leave_the_thread_asleep() {
    machine_of("quiet", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE, MIB, MISSING);
        let woken = AtomicUsize::new(0);
        machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                mm.switch_in();
                assert_eq!(load(machine, &mm, BASE + PAGE), Ok(1));
                assert_eq!(woken.load(Ordering::SeqCst), 1, "it went on before it was woken");
                mm.switch_out();
                return;
            }
            let event = handler.wait_event().unwrap().keep();
            assert_eq!(copy(&mm, fault_of(event).addr.0, 1, AnswerMode::QUIET), Ok(PAGE));
            std::thread::sleep(Duration::from_millis(20));
            // A wake-up of another page does not wake this thread.
            mm.userfault_wake(VirtAddr(BASE + 2 * PAGE), PAGE).all().unwrap();
            assert_eq!(handler.info().taken, 1);
            woken.store(1, Ordering::SeqCst);
            mm.userfault_wake(VirtAddr(BASE), 2 * PAGE).all().unwrap();
            until(|| handler.info().taken == 0);
            // A thread that is woken for nothing asks again.
        });
        assert!(handler.next_event().is_none());
    });
}

#[test]
fn a_thread_that_is_woken_for_nothing_asks_again() {
    machine_of("spurious", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE, MIB, MISSING);
        machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                mm.switch_in();
                assert_eq!(load(machine, &mm, BASE), Ok(1));
                mm.switch_out();
                return;
            }
            let (mut tickets, mut last) = (HashSet::new(), None);
            for _ in 0..20 {
                let fault = fault_of(handler.wait_event().unwrap().keep());
                assert!(tickets.insert(fault.ticket));
                // The place may be the same; its present ticket is another.
                assert!(last.replace(fault).is_none_or(|before| !handler.requeue(&before)));
                mm.userfault_wake(VirtAddr(BASE), PAGE).all().unwrap();
            }
            let fault = fault_of(handler.wait_event().unwrap().keep());
            assert!(tickets.insert(fault.ticket));
            assert_eq!(copy(&mm, BASE, 1, WAKE), Ok(PAGE));
        });
    });
}

/// The library invents neither zeroes nor rights.
#[test]
fn a_handler_that_dies_leaves_errors_until_another_one_adopts_its_ranges() {
    machine_of("dead", 4, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        mm.mmap(&anonymous(BASE + 2 * MIB, MIB)).unwrap();
        let first = handler(manager);
        register(&mm, &first, BASE, MIB, MISSING);
        register(&mm, &first, BASE + 2 * MIB, 16 * PAGE, MISSING);
        let second: Mutex<Option<crate::userfault::support::Handler<'_>>> = Mutex::new(None);
        let stopped = AtomicUsize::new(0);
        machine.spawn_cpus(4, |cpu| {
            let at = BASE + u64::from(cpu.0) * PAGE;
            if cpu.0 == 3 {
                until(|| first.info().pending == 3);
                let _one = first.next_event().unwrap().keep();
                first.close();
                until(|| stopped.load(Ordering::SeqCst) == 3);
                return;
            }
            mm.switch_in();
            assert_eq!(load(machine, &mm, at), Err(FaultError::NoHandler));
            assert_eq!(store(machine, &mm, at, 1), Err(FaultError::NoHandler), "and it stays so");
            stopped.fetch_add(1, Ordering::SeqCst);
            mm.switch_out();
        });
        // A new handler may have the place of the old one: it does not get the old one's ranges.
        *second.lock().unwrap() = Some(handler(manager));
        mm.switch_in();
        assert_eq!(load(machine, &mm, BASE), Err(FaultError::NoHandler));
        mm.userfault_unregister(VirtAddr(BASE + 2 * MIB), 8 * PAGE).unwrap();
        assert_eq!(load(machine, &mm, BASE + 2 * MIB), Ok(0), "now no handler is asked");
        mm.switch_out();
        let second = second.into_inner().unwrap().unwrap();
        assert_eq!(mm.userfault_adopt(&second), Ok(MIB + 8 * PAGE));
        assert_eq!(mm.userfault_adopt(&second), Ok(0));
        crate::userfault::support::program_and_handler(
            machine,
            &mm,
            &second,
            || {
                assert_eq!(load(machine, &mm, BASE), Ok(5));
                assert_eq!(load(machine, &mm, BASE + 2 * MIB + 9 * PAGE), Ok(5));
            },
            |event| assert_eq!(copy(&mm, fault_of(event).addr.0, 5, WAKE), Ok(PAGE)),
        );
        mm.validate().unwrap();
    });
}

#[test]
fn handlers_are_few_and_places_are_used_again() {
    machine_of("few", 1, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, MIB)).unwrap();
            let all: Vec<_> = (0..MAX_USERFAULTS).map(|_| handler(manager)).collect();
            let one_more = manager.userfault(UserfaultChanges::ALL);
            assert_eq!(one_more.err(), Some(TooManyHandlers));
            register(mm, &all[3], BASE, PAGE, MISSING);
            drop(all);
            for _ in 0..100 {
                let all: Vec<_> = (0..MAX_USERFAULTS).map(|_| handler(manager)).collect();
                assert_eq!(load(machine, mm, BASE), Err(FaultError::NoHandler));
                assert!(all.iter().all(|handler| handler.next_event().is_none()));
            }
        });
    });
}

/// A program that populates and locks its pages waits like one that touches them.
#[test]
fn populating_waits_too() {
    machine_of("populate", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE, MIB, MISSING);
        let events = AtomicU64::new(0);
        let program = || {
            mm.madvise(VirtAddr(BASE), 20 * PAGE, quire::vm::Advice::PopulateWrite).unwrap();
            mm.mlock(VirtAddr(BASE), 24 * PAGE, false).unwrap();
            (0..24).for_each(|page| assert_eq!(load(machine, &mm, BASE + page * PAGE), Ok(page)));
        };
        crate::userfault::support::program_and_handler(machine, &mm, &handler, program, |event| {
            events.fetch_add(1, Ordering::SeqCst);
            let UserfaultEvent::Fault(fault) = event else { panic!("{event:?}") };
            assert_eq!(copy(&mm, fault.addr.0, (fault.addr.0 - BASE) / PAGE, WAKE), Ok(PAGE));
        });
        assert_eq!(events.load(Ordering::SeqCst), 24);
    });
}

/// A handler need not answer for a page that it has brought already: a thread that asks for the page has
/// found it by then, or was woken (invariant U1).
#[test]
fn a_page_that_was_brought_is_not_waited_for() {
    const PROGRAMS: usize = 4;
    const ROUNDS: u64 = 40;
    machine_of("once", PROGRAMS + 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        let len = 64 * PAGE;
        let (ended, at_start) = (AtomicUsize::new(0), std::sync::Barrier::new(PROGRAMS));
        for round in 0..ROUNDS {
            mm.mmap(&anonymous(BASE + round * MIB, len)).unwrap();
            register(&mm, &handler, BASE + round * MIB, len, MISSING);
        }
        let brought = Mutex::new(HashSet::new());
        machine.spawn_cpus(PROGRAMS + 2, |cpu| {
            if cpu.index() >= PROGRAMS {
                while let Some(event) = handler.wait_event() {
                    let fault = fault_of(event.keep());
                    if brought.lock().unwrap().insert(fault.addr.0) {
                        assert_eq!(copy(&mm, fault.addr.0, fault.addr.0, WAKE), Ok(PAGE));
                    }
                }
                return;
            }
            mm.switch_in();
            for round in 0..ROUNDS {
                at_start.wait();
                for at in (0..len).step_by(PAGE as usize) {
                    let at = BASE + round * MIB + at;
                    assert_eq!(load(machine, &mm, at), Ok(at));
                }
            }
            mm.switch_out();
            if ended.fetch_add(1, Ordering::SeqCst) == PROGRAMS - 1 {
                handler.close();
            }
        });
        assert_eq!(brought.into_inner().unwrap().len() as u64, ROUNDS * 64);
    });
}

/// A handler that was woken does not count as asleep: while none sleeps, events wake no handler.
#[test]
fn a_handler_that_does_not_sleep_is_not_woken() {
    machine_of("awake", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, PAGE)).unwrap();
        register(&mm, &handler, BASE, PAGE, MISSING);
        machine.reset_counters();
        let wakes = machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                // The handler counts as asleep from before that.
                until(|| machine.counters().waits > 0);
                mm.switch_in();
                assert_eq!(load(machine, &mm, BASE), Ok(5));
                mm.switch_out();
                return 0;
            }
            let fault = fault_of(handler.wait_event().expect("a fault").keep());
            until(|| machine.counters().wakes > 0);
            assert!(handler.requeue(&fault));
            let wakes = machine.counters().wakes;
            assert_eq!(copy(&mm, BASE, 5, WAKE), Ok(PAGE));
            wakes
        });
        assert_eq!(wakes[1], 1, "the handler was woken for the fault alone");
        mm.exit();
    });
}

/// As Linux does it: a child's ranges get a handler of their own, and those of a closed handler have none.
#[test]
fn ranges_are_handed_over_to_another_handler_or_to_none() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        let (first, second, other) = (handler(manager), handler(manager), handler(manager));
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &first, BASE, 4 * PAGE, MISSING | PROTECT);
        register(&mm, &first, BASE + 8 * PAGE, 4 * PAGE, MISSING);
        register(&mm, &other, BASE + 16 * PAGE, 4 * PAGE, MISSING);
        assert_eq!(copy(&mm, BASE, 7, AnswerMode::PROTECTED), Ok(PAGE));
        let child = mm.fork().unwrap();
        assert_eq!(child.userfault_hand_over(&first, Some(&second)), Ok(8 * PAGE));
        first.close();
        assert_eq!(copy(&child, BASE + PAGE, 8, WAKE), Ok(PAGE), "the child's handler is open");
        assert!(marked(&child)[0], "marks stay");
        assert_eq!(child.userfault_hand_over(&second, None), Ok(8 * PAGE));
        assert!(!marked(&child)[0], "marks go with the last handler");
        assert_eq!(load(machine, &mm, BASE + 9 * PAGE), Err(FaultError::NoHandler));
        assert_eq!(mm.userfault_hand_over(&first, None), Ok(8 * PAGE));
        assert_eq!(load(machine, &mm, BASE + 9 * PAGE), Ok(0));
        assert_eq!(mm.userfault_hand_over(&first, None), Ok(0));
        mm.switch_out();
        child.switch_in();
        store(machine, &child, BASE, 9).unwrap();
        assert_eq!(load(machine, &child, BASE + 10 * PAGE), Ok(0));
        child.switch_out();
        for mm in [&mm, &child] {
            mm.validate().unwrap();
            assert_eq!(mm.userfault_hand_over(&other, None), Ok(4 * PAGE));
        }
    });
}

/// Ranges of a closed handler would fail every fault: they stay with the handler that they have.
#[test]
fn ranges_are_not_handed_over_to_a_closed_handler() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        let (first, closed) = (handler(manager), handler(manager));
        closed.close();
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &first, BASE, 4 * PAGE, MISSING);
        assert_eq!(mm.userfault_hand_over(&first, Some(&closed)), Err(MmError::Invalid));
        assert_eq!(copy(&mm, BASE, 7, WAKE), Ok(PAGE), "the handler answers as before");
        assert_eq!(load(machine, &mm, BASE), Ok(7));
        mm.switch_out();
    });
}

#[test]
fn a_watched_handler_wakes_for_each_event() {
    machine_of("watched", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE, MIB, MISSING);
        let word = handler.watch();
        machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                mm.switch_in();
                (0..4).for_each(|page| assert_eq!(load(machine, &mm, BASE + page * PAGE), Ok(page)));
                mm.switch_out();
                return;
            }
            for _ in 0..4 {
                let event = loop {
                    let seen = word.load(Ordering::Acquire);
                    match handler.next_event() {
                        Some(event) => break event.keep(),
                        None => quire::platform::Platform::wait(machine, word, seen),
                    }
                };
                let fault = fault_of(event);
                assert_eq!(copy(&mm, fault.addr.0, (fault.addr.0 - BASE) / PAGE, WAKE), Ok(PAGE));
            }
        });
    });
}

#[test]
fn a_handler_that_wants_faults_to_fail_is_told_of_none() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        run(manager, |mm| {
            let handler = manager.userfault(UserfaultChanges::FAIL).unwrap();
            mm.mmap(&anonymous(BASE, MIB)).unwrap();
            register(mm, &handler, BASE, PAGE, MISSING);
            assert_eq!(load(machine, mm, BASE), Err(FaultError::NoHandler));
            assert_eq!(copy(mm, BASE, 7, WAKE), Ok(PAGE));
            assert_eq!(load(machine, mm, BASE), Ok(7));
            assert_eq!(load(machine, mm, BASE + PAGE), Ok(0), "this page is not registered");
            assert!(handler.next_event().is_none());
        });
    });
}

#[test]
fn a_fault_tells_its_exact_address() {
    machine_of("exact", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE, MIB, MISSING);
        let program = || assert_eq!(load(machine, &mm, BASE + 3 * PAGE + 24), Ok(9));
        program_and_handler(machine, &mm, &handler, program, |event| {
            let fault = fault_of(event);
            assert_eq!((fault.addr.0, fault.exact.0), (BASE + 3 * PAGE, BASE + 3 * PAGE + 24));
            assert_eq!(copy(&mm, fault.addr.0, 9, WAKE), Ok(PAGE));
        });
    });
}
