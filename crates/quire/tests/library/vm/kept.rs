//! CPUs that keep translations of address spaces that they leave, as with process-context identifiers: what
//! was flushed meanwhile is not used when they return.

use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use hosted::{FailurePlan, Hosted, HostedConfig, OnViolation};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::vm::{Advice, FolioPolicy, Remap};

use testkit::{ranges_of, seed};

use crate::vm::world::{MIB, Manager, Space, anonymous, load, store, with_manager};

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;
const PAGES: u64 = 8;
const CPU1: CpuId = CpuId(1);

fn machine(cpus: usize) -> HostedConfig {
    HostedConfig::new(64 * MIB).with_cpus(cpus).keeping_translations()
}

/// Two address spaces. This CPU has used the pages of the first one, and runs the second.
fn away<'m>(machine: &Hosted, manager: &'m Manager<'_>) -> (Space<'m>, Space<'m>) {
    manager.set_folio_policy(FolioPolicy::FRAMES);
    let (first, second) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
    first.mmap(&anonymous(BASE, PAGES * PAGE)).unwrap();
    first.switch_in();
    (0..PAGES).for_each(|page| store(machine, &first, BASE + page * PAGE, page + 1).unwrap());
    first.switch_to(&second);
    (first, second)
}

fn end(first: Space<'_>, second: Space<'_>) {
    first.switch_out();
    first.exit();
    second.exit();
}

#[test]
fn a_cpu_that_returns_needs_no_walk() {
    with_manager(machine(1), |machine, manager| {
        let (first, second) = away(machine, manager);
        machine.reset_counters();
        second.switch_to(&first);
        (0..PAGES).for_each(|page| assert_eq!(load(machine, &first, BASE + page * PAGE), Ok(page + 1)));
        let counted = machine.counters();
        assert_eq!((counted.roots_kept, counted.roots_loaded), (1, 0));
        assert_eq!((counted.tlb_misses, counted.tlb_hits), (0, PAGES));
        // Through no address space at all, it is the same.
        first.switch_out();
        first.switch_in();
        assert_eq!(load(machine, &first, BASE), Ok(1));
        assert_eq!(machine.counters().tlb_misses, 0);
        end(first, second);
    });
}

/// A CPU whose bit stands in the second word of a set.
#[test]
fn a_cpu_with_a_high_number_that_returns_needs_no_walk() {
    let machine = HostedConfig { cpus: 70, ..machine(1) };
    with_manager(machine, |machine, manager| {
        machine.run_on(CpuId(64), || {
            let (first, second) = away(machine, manager);
            machine.reset_counters();
            for kept in 1..3 {
                second.switch_to(&first);
                assert_eq!(load(machine, &first, BASE), Ok(1));
                first.switch_to(&second);
                let counted = machine.counters();
                assert_eq!((counted.roots_kept, counted.roots_loaded), (2 * kept, 0));
            }
            second.switch_to(&first);
            end(first, second);
            manager.pages().lists().drain_local();
        });
    });
}

/// A flush while the CPU runs the address space is no reason to lose the rest when it leaves later.
#[test]
fn a_flush_before_the_cpu_leaves_takes_nothing_away() {
    with_manager(machine(2), |machine, manager| {
        let (first, second) = away(machine, manager);
        second.switch_to(&first);
        machine.run_on(CPU1, || first.munmap(VirtAddr(BASE), PAGE).unwrap());
        first.switch_to(&second);
        machine.reset_counters();
        second.switch_to(&first);
        (1..PAGES).for_each(|page| assert_eq!(load(machine, &first, BASE + page * PAGE), Ok(page + 1)));
        assert_eq!((machine.counters().roots_kept, machine.counters().tlb_misses), (1, 0));
        assert!(load(machine, &first, BASE).is_err());
        end(first, second);
    });
}

/// What a verb does to the pages while the CPU is away.
type Verb = fn(&Hosted, &Space<'_>);

const VERBS: [(&str, Verb); 6] = [
    ("munmap", |_, mm| mm.munmap(VirtAddr(BASE), PAGES * PAGE).unwrap()),
    ("mprotect", |_, mm| mm.mprotect(VirtAddr(BASE), PAGES * PAGE, Protection::READ).unwrap()),
    ("dontneed", |_, mm| mm.madvise(VirtAddr(BASE), PAGES * PAGE, Advice::DontNeed).unwrap()),
    ("one page", |_, mm| mm.munmap(VirtAddr(BASE + PAGE), PAGE).unwrap()),
    ("mremap", |_, mm| {
        let to = Remap::Fixed(VirtAddr(BASE + MIB));
        mm.mremap(VirtAddr(BASE), PAGES * PAGE, PAGES * PAGE, to).unwrap();
    }),
    ("fork, and a store of another CPU", |machine, mm| {
        let child = mm.fork().unwrap();
        mm.switch_in();
        (0..PAGES).for_each(|page| store(machine, mm, BASE + page * PAGE, 99).unwrap());
        mm.switch_out();
        child.exit();
    }),
];

/// The word of a page, as far as the CPU's translations and the tables have it.
fn read(machine: &Hosted, page: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    machine.read(VirtAddr(BASE + page * PAGE), &mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
}

/// Runs a verb on another CPU while this one is away, then uses the pages again. Returns what was wrong.
fn after(verb: Verb, stale: FailurePlan) -> usize {
    let mut wrong = 0;
    let config = HostedConfig { on_violation: OnViolation::Record, ..machine(2) };
    let machine = config.build().expect("a machine");
    machine.run_on(CpuId(0), || {
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &quire::manager::Config::default())
                .expect("a manager");
        let (first, second) = away(&machine, &manager);
        machine.run_on(CPU1, || verb(&machine, &first));
        machine.load_stale_roots(stale);
        second.switch_to(&first);
        machine.load_stale_roots(FailurePlan::Off);
        let other = machine.run_on(CPU1, || {
            first.switch_in();
            let seen: Vec<_> = (0..PAGES).map(|page| read(&machine, page)).collect();
            first.switch_out();
            seen
        });
        for (page, expected) in (0..PAGES).zip(other) {
            wrong += usize::from(read(&machine, page) != expected);
        }
        let may_store = first.next_vma(VirtAddr(BASE)).is_some_and(|vma| {
            vma.range.contains(VirtAddr(BASE)) && vma.protection.contains(Protection::WRITE)
        });
        wrong += usize::from(!may_store && machine.write(VirtAddr(BASE), &[7]).is_ok());
        end(first, second);
    });
    wrong + machine.violations().len()
}

/// P4.
#[test]
fn what_changed_meanwhile_is_seen() {
    for (name, verb) in VERBS {
        assert_eq!(after(verb, FailurePlan::Off), 0, "{name}");
        // A load that forgets to flush is noticed, or the test above proved nothing.
        assert!(after(verb, FailurePlan::From(0)) > 0, "{name}: stale translations were not noticed");
    }
}

/// The root of an address space that is gone becomes that of another one.
#[test]
fn a_root_that_is_used_again_is_another_address_space() {
    with_manager(machine(1), |machine, manager| {
        let (first, second) = away(machine, manager);
        second.switch_to(&first);
        first.switch_to(&second);
        let root = first.root();
        first.exit();
        manager.pages().lists().drain_all();
        // Roots come from blocks of their kind of memory, which are filled one after the other.
        let mut next: Vec<Space<'_>> = Vec::new();
        while next.last().is_none_or(|mm| mm.root() != root) {
            assert!(next.len() < 2048, "the frame of a root is not used again");
            next.push(manager.new_mm().unwrap());
        }
        second.switch_out();
        let last = next.last().expect("it has the root");
        last.switch_in();
        assert!(load(machine, last, BASE).is_err(), "nothing is mapped here");
        last.switch_out();
        next.into_iter().for_each(Space::exit);
        second.exit();
    });
}

const STRETCH: u64 = 64 * PAGE;

/// P4: threads that go from one address space to another and change them all at once. Each has words of its
/// own in each.
#[test]
fn threads_that_switch_find_what_they_stored() {
    const CPUS: usize = 4;
    const SPACES: usize = 3;
    let kept = AtomicU64::new(0);
    with_manager(machine(CPUS), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let spaces: Vec<_> = (0..SPACES).map(|_| manager.new_mm().unwrap()).collect();
        for mm in &spaces {
            mm.mmap(&anonymous(BASE, CPUS as u64 * STRETCH)).unwrap();
        }
        let seed = seed(fastrand::u64(..));
        println!("QUIRE_SEED={seed}");
        machine.spawn_cpus(CPUS, |cpu| {
            let mut rng = Rng::with_seed(seed ^ u64::from(cpu.0));
            let mut own = vec![[None; 64]; SPACES];
            let mut now = 0;
            spaces[now].switch_in();
            for round in 0..2000_u64 {
                let (page, mm) = (rng.u64(..64), &spaces[now]);
                let at = BASE + u64::from(cpu.0) * STRETCH + page * PAGE;
                match rng.u8(..8) {
                    0..3 => {
                        let next = rng.usize(..SPACES);
                        mm.switch_to(&spaces[next]);
                        now = next;
                    }
                    3..5 => {
                        store(machine, mm, at, round).unwrap();
                        own[now][page as usize] = Some(round);
                    }
                    5 => {
                        // In another address space, which this CPU may have left a moment ago.
                        let other = rng.usize(..SPACES);
                        spaces[other].madvise(VirtAddr(at), PAGE, Advice::DontNeed).unwrap();
                        own[other][page as usize] = Some(0);
                    }
                    6 => {
                        let other = rng.usize(..SPACES);
                        spaces[other].mprotect(VirtAddr(at), PAGE, Protection::READ).unwrap();
                        let rights = Protection::READ | Protection::WRITE;
                        spaces[other].mprotect(VirtAddr(at), PAGE, rights).unwrap();
                    }
                    _ => {
                        let expected = own[now][page as usize].unwrap_or(0);
                        assert_eq!(load(machine, mm, at), Ok(expected), "round {round}");
                    }
                }
            }
            spaces[now].switch_out();
        });
        kept.store(machine.counters().roots_kept, Ordering::Relaxed);
        spaces.into_iter().for_each(Space::exit);
    });
    assert!(kept.into_inner() > 100, "translations were kept");
}
