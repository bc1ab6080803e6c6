//! Programs, handlers and verbs all at once: no thread waits for ever, and every page holds an answer or a
//! store.

use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::error::{FaultError, UserfaultError};
use quire::vm::{
    Advice, AnswerMode, ForkStrategy, Remap, UserfaultChanges, UserfaultEvent, UserfaultFault, UserfaultKind,
};

use crate::userfault::support::{BASE, Handler, MISSING, PAGE, PROTECT, WAKE, copy, register, watched};
use crate::userfault::world::{FORKS, MIB, Manager, Space, anonymous, load, store, with_forks};
use testkit::{Stress, seed, stress_time};

const PROGRAMS: usize = 3;
const HANDLERS: usize = 2;
const PAGES: u64 = 96;
/// The memory moves between two places.
const PLACES: [u64; 2] = [BASE, BASE + 8 * MIB];

/// The word that the handler brings for an address: never 0.
fn tag(addr: u64) -> u64 {
    let place = PLACES.iter().find(|&&place| (place..place + PAGES * PAGE).contains(&addr)).unwrap();
    0x7a60_0000 + (addr - place) / PAGE
}

struct Scene<'m, 's> {
    machine: &'s Hosted,
    mm: &'s Space<'m>,
    handler: &'s Handler<'m>,
    /// A child that runs at the same time.
    child: RwLock<Option<Space<'m>>>,
    ended: AtomicUsize,
    faults: AtomicU64,
}

impl<'m> Scene<'m, '_> {
    /// Touches pages: each holds the handler's word, or the word that a program has stored to it.
    fn program(&self, rng: &mut Rng) {
        let stress = Stress::begin();
        self.mm.switch_in();
        while stress.goes_on(|| self.faults.load(Ordering::Relaxed) > 100) {
            let addr = PLACES[rng.usize(..2)] + rng.u64(..PAGES) * PAGE;
            let seen = if rng.u32(..3) == 0 {
                store(self.machine, self.mm, addr + 64, addr).map(|()| None)
            } else {
                load(self.machine, self.mm, addr).map(Some)
            };
            match seen {
                Ok(None) => {}
                Ok(Some(word)) => {
                    assert_eq!(word, tag(addr), "{addr:#x} holds a word that was never brought")
                }
                Err(error) => assert_eq!(error, FaultError::NotMapped, "it is in the other place"),
            }
        }
        self.mm.switch_out();
        if self.ended.fetch_add(1, Ordering::SeqCst) == PROGRAMS {
            self.handler.close();
        }
    }

    fn verbs(&self, rng: &mut Rng) {
        let end = Instant::now() + stress_time();
        let mut place = 0;
        while Instant::now() < end {
            let (at, len) =
                (VirtAddr(PLACES[place] + rng.u64(..PAGES / 2) * PAGE), rng.u64(1..PAGES / 2) * PAGE);
            match rng.u32(..6) {
                0 => self.mm.madvise(at, len, Advice::DontNeed).unwrap(),
                1 => {
                    let (from, to) = (VirtAddr(PLACES[place]), VirtAddr(PLACES[1 - place]));
                    assert_eq!(self.mm.mremap(from, PAGES * PAGE, PAGES * PAGE, Remap::Fixed(to)), Ok(to));
                    place = 1 - place;
                }
                2 => {
                    let from = VirtAddr(PLACES[place]);
                    self.mm.munmap(from, PAGES * PAGE).unwrap();
                    // No thread may see it before it has its handler, so it is registered elsewhere and
                    // moved.
                    let apart = BASE + 16 * MIB;
                    self.mm.mmap(&anonymous(apart, PAGES * PAGE)).unwrap();
                    register(self.mm, self.handler, apart, PAGES * PAGE, MISSING | PROTECT);
                    let moved =
                        self.mm.mremap(VirtAddr(apart), PAGES * PAGE, PAGES * PAGE, Remap::Fixed(from));
                    assert_eq!(moved, Ok(from));
                }
                3 => {
                    let protect = self.mm.userfault_write_protect(at, len, true, WAKE);
                    assert!(matches!(protect.all(), Ok(_) | Err(UserfaultError::Again)), "{protect:?}");
                }
                4 => self.fork(PLACES[place], rng),
                _ => std::thread::sleep(Duration::from_micros(rng.u64(..300))),
            }
        }
        if self.ended.fetch_add(1, Ordering::SeqCst) == PROGRAMS {
            self.handler.close();
        }
    }

    /// A child that touches some pages, and exits.
    fn fork(&self, place: u64, rng: &mut Rng) {
        *self.child.write().unwrap() = Some(self.mm.fork().expect("memory"));
        let child = self.child.read().unwrap();
        let space = child.as_ref().unwrap();
        space.switch_in();
        for _ in 0..20 {
            let addr = place + rng.u64(..PAGES) * PAGE;
            assert_eq!(load(self.machine, space, addr), Ok(tag(addr)));
            store(self.machine, space, addr + 128, 1).unwrap();
        }
        space.validate().expect("broken child");
        space.switch_out();
        drop(child);
        *self.child.write().unwrap() = None;
    }

    /// Reads events and answers: late, in any order, sometimes twice or not at first.
    fn handle(&self, rng: &mut Rng) {
        let mut late: Vec<UserfaultFault> = Vec::new();
        loop {
            let event = if late.is_empty() { self.handler.wait_event() } else { self.handler.next_event() };
            match event.map(|event| event.keep()) {
                None if late.is_empty() => return,
                None => {}
                Some(UserfaultEvent::Fault(fault)) => {
                    self.faults.fetch_add(1, Ordering::Relaxed);
                    late.push(fault);
                    if rng.u32(..4) == 0 {
                        continue;
                    }
                }
                Some(_) => continue,
            }
            let fault = late.swap_remove(rng.usize(..late.len()));
            let child = self.child.try_read();
            let space = match &child {
                _ if fault.space == self.mm.number() => self.mm,
                Ok(child) => match child.as_ref().filter(|child| child.number() == fault.space) {
                    Some(child) => child,
                    None => continue,
                },
                Err(_) => {
                    self.handler.requeue(&fault);
                    continue;
                }
            };
            self.answer(space, fault, rng);
        }
    }

    fn answer(&self, space: &Space<'_>, fault: UserfaultFault, rng: &mut Rng) {
        let done = match fault.kind {
            UserfaultKind::WriteProtected => {
                space.userfault_write_protect(fault.addr, PAGE, false, WAKE).all()
            }
            _ => {
                let mode = if rng.bool() { AnswerMode::PROTECTED } else { AnswerMode::QUIET };
                copy(space, fault.addr.0, tag(fault.addr.0), mode)
            }
        };
        match done {
            Err(UserfaultError::Again) => {
                self.handler.requeue(&fault);
            }
            Ok(_) | Err(UserfaultError::Exists | UserfaultError::NotRegistered) => {
                space.userfault_wake(fault.addr, PAGE).all().unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn programs_handlers_and_verbs_side_by_side() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    for fork in FORKS {
        watched("threads", 60, || side_by_side(first, fork));
    }
}

fn side_by_side(first: u64, fork: ForkStrategy) {
    const CPUS: usize = PROGRAMS + HANDLERS + 1;
    with_forks(HostedConfig::new(64 * MIB).with_cpus(CPUS), fork, |machine, manager| {
        run_all(machine, manager, first);
    });
}

fn run_all(machine: &Hosted, manager: &Manager<'_>, first: u64) {
    let mm = manager.new_mm().unwrap();
    let handler = manager.userfault(UserfaultChanges::ALL).unwrap();
    mm.mmap(&anonymous(BASE, PAGES * PAGE)).unwrap();
    register(&mm, &handler, BASE, PAGES * PAGE, MISSING | PROTECT);
    let scene = Scene {
        machine,
        mm: &mm,
        handler: &handler,
        child: RwLock::new(None),
        ended: AtomicUsize::new(0),
        faults: AtomicU64::new(0),
    };
    machine.spawn_cpus(PROGRAMS + HANDLERS + 1, |cpu| {
        let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
        match cpu.index() {
            number if number < PROGRAMS => scene.program(&mut rng),
            PROGRAMS => scene.verbs(&mut rng),
            _ => scene.handle(&mut rng),
        }
        manager.pages().lists().drain_local();
    });
    assert!(scene.faults.load(Ordering::Relaxed) > 100, "hardly any thread waited");
    mm.validate().expect("broken address space");
}
