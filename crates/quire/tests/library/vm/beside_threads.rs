//! Verbs that admit faults, and faults and small verbs beside them, in mappings that share page tables.

use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::vm::{Advice, FolioPolicy};

use crate::vm::world::{MIB, Manager, R, RW, Space, anonymous, load, store, with_manager};

const PAGE: u64 = 4096;
const BASE: u64 = 0x4000_0000;
/// What CPU 0 unmaps and maps. It ends in the middle of a table, and a page is free behind it.
const FIRST: Part = Part { start: BASE, pages: 256 };
/// What CPU 1 stores to and drops, and CPU 2 protects: from the middle of a table to the middle of another.
const SECOND: Part = Part { start: BASE + MIB + PAGE, pages: 1024 };
/// What CPU 2 stores to: from the middle of that table on.
const THIRD: Part = Part { start: SECOND.end() + PAGE, pages: 700 };
const ROUNDS: usize = 600;

#[derive(Clone, Copy)]
struct Part {
    start: u64,
    pages: u64,
}

impl Part {
    const fn end(self) -> u64 {
        self.start + self.pages * PAGE
    }

    fn at(self, page: u64) -> u64 {
        self.start + page * PAGE
    }

    /// Some of its pages, often many.
    fn some(self, rng: &mut Rng) -> (u64, u64) {
        let first = rng.u64(..self.pages);
        let most = self.pages - first;
        (first, if rng.bool() { most } else { rng.u64(1..=most.min(40)) })
    }
}

/// One CPU's words in its part, as it knows them. `None` is unmapped.
struct Words<'a, 'm> {
    machine: &'a Hosted,
    mm: &'a Space<'m>,
    part: Part,
    words: Vec<Option<u64>>,
}

impl Words<'_, '_> {
    fn store(&mut self, page: u64, word: u64) {
        let stored = store(self.machine, self.mm, self.part.at(page), word);
        match &mut self.words[page as usize] {
            Some(known) if stored.is_ok() => *known = word,
            // Another CPU may have protected it.
            Some(_) => {}
            None => assert!(stored.is_err(), "page {page} is not mapped"),
        }
    }

    fn check(&self, page: u64) {
        let found = load(self.machine, self.mm, self.part.at(page)).ok();
        assert_eq!(found, self.words[page as usize], "page {page} of {:#x}", self.part.start);
    }

    fn set(&mut self, (first, pages): (u64, u64), word: Option<u64>) {
        self.words[first as usize..(first + pages) as usize].fill(word);
    }

    /// Stores to a page or checks one.
    fn touch(&mut self, rng: &mut Rng, round: usize) {
        let page = rng.u64(..self.part.pages);
        if rng.bool() { self.store(page, round as u64 + 1) } else { self.check(page) }
    }
}

fn map_and_unmap(own: &mut Words<'_, '_>, rng: &mut Rng) {
    let (first, pages) = own.part.some(rng);
    let (at, bytes) = (own.part.at(first), pages * PAGE);
    if rng.bool() {
        own.mm.munmap(VirtAddr(at), bytes).expect("memory");
        own.set((first, pages), None);
    } else {
        own.mm.mmap(&anonymous(at, bytes)).expect("memory");
        own.set((first, pages), Some(0));
    }
}

fn drop_pages(own: &mut Words<'_, '_>, rng: &mut Rng) {
    let (first, pages) = own.part.some(rng);
    let at = VirtAddr(own.part.at(first));
    own.mm.madvise(at, pages * PAGE, Advice::DontNeed).expect("mapped");
    own.set((first, pages), Some(0));
}

fn protect(mm: &Space<'_>, rng: &mut Rng) {
    let (first, pages) = SECOND.some(rng);
    let rights = if rng.u8(..3) == 0 { R } else { RW };
    mm.mprotect(VirtAddr(SECOND.at(first)), pages * PAGE, rights).expect("mapped");
}

/// Returns how many leaves the CPUs changed while others looked at them.
fn side_by_side(machine: &Hosted, manager: &Manager<'_>, policy: FolioPolicy, seed: u64) -> u64 {
    manager.set_folio_policy(policy);
    let mm = manager.new_mm().expect("memory");
    for part in [FIRST, SECOND, THIRD] {
        mm.mmap(&anonymous(part.start, part.pages * PAGE)).expect("memory");
    }
    let done = AtomicU64::new(0);
    machine.spawn_cpus(3, |cpu| {
        let mut rng = Rng::with_seed(seed ^ u64::from(cpu.0));
        let part = [FIRST, SECOND, THIRD][cpu.index()];
        let words = vec![Some(0); part.pages as usize];
        let mut own = Words { machine, mm: &mm, part, words };
        mm.switch_in();
        for round in 0..ROUNDS {
            (0..6).for_each(|_| own.touch(&mut rng, round));
            match cpu {
                CpuId(0) => map_and_unmap(&mut own, &mut rng),
                CpuId(1) => drop_pages(&mut own, &mut rng),
                _ => protect(&mm, &mut rng),
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        (0..part.pages).for_each(|page| own.check(page));
        mm.switch_out();
    });
    mm.validate().expect("a sound address space");
    mm.exit();
    done.into_inner()
}

#[test]
fn verbs_and_faults_share_tables() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    with_manager(HostedConfig::new(128 * MIB).with_cpus(3), |machine, manager| {
        for policy in [FolioPolicy::FRAMES, FolioPolicy::default()] {
            assert_eq!(side_by_side(machine, manager, policy, seed), 3 * ROUNDS as u64);
        }
    });
}
