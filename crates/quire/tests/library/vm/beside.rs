//! Faults beside a verb that works on a range: elsewhere they go on, inside they wait.

use std::sync::atomic::{AtomicBool, Ordering};

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::vm::{Access, Advice, FolioPolicy};

use crate::vm::world::{MIB, R, Space, anonymous, store, with_manager};
use testkit::{PATIENCE, held_up_to_look};

const GIB: u64 = 1 << 30;
const BASE: u64 = 2 * GIB;
const PAGE: u64 = 4096;
/// Two whole tables and a part of a third.
const LEN: u64 = 4 * MIB + 64 * PAGE;
/// In the same mapping, behind the range's last table.
const ELSEWHERE: u64 = BASE + 6 * MIB;
/// In the range.
const INSIDE: u64 = BASE + 2 * MIB;
/// In the same mapping, in a GiB without any page.
const EMPTY: u64 = BASE - GIB / 2;

type Verb = fn(&Space<'_>);

const UNMAP: Verb = |mm| mm.munmap(VirtAddr(BASE), LEN).expect("aligned");
const MAP_OVER: Verb = |mm| _ = mm.mmap(&anonymous(BASE, LEN)).expect("memory");
const DROP: Verb = |mm| mm.madvise(VirtAddr(BASE), LEN, Advice::DontNeed).expect("mapped");
const PROTECT: Verb = |mm| mm.mprotect(VirtAddr(BASE), LEN, R).expect("mapped");

/// From the end of the GiB without any page.
const DROP_EARLIER: Verb =
    |mm| mm.madvise(VirtAddr(BASE - 2 * MIB), 2 * MIB + LEN, Advice::DontNeed).expect("mapped");
const PROTECT_EARLIER: Verb = |mm| mm.mprotect(VirtAddr(BASE - 2 * MIB), 2 * MIB + LEN, R).expect("mapped");

/// Memory of which some pages were stored to, on two CPUs.
fn stored(machine: &Hosted, mm: &Space<'_>) {
    mm.mmap(&anonymous(BASE - GIB, GIB + 8 * MIB)).expect("memory");
    machine.spawn_cpus(2, |_| mm.switch_in());
    for at in [BASE, BASE + PAGE, INSIDE, BASE + 4 * MIB, ELSEWHERE] {
        store(machine, mm, at, at).expect("mapped");
    }
}

/// Holds the verb up at each of its calls of the platform while another CPU faults, and tells whether the verb has
/// flushed by then, and whether the fault ended meanwhile.
fn at_each_moment(verb: Verb, fault: u64, mut tell: impl FnMut(bool, bool)) {
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let (mut round, mut calls) = (0, 0);
        while round <= calls {
            let mm = manager.new_mm().expect("memory");
            stored(machine, &mm);
            let before = machine.counters().flushes_remote;
            let flushed = AtomicBool::new(false);
            let held = held_up_to_look(
                machine,
                InterruptPlan::Nth(round),
                PATIENCE,
                || verb(&mm),
                || mm.fault(VirtAddr(fault), Access::Read),
                |_| flushed.store(machine.counters().flushes_remote > before, Ordering::Relaxed),
            );
            match held.second {
                Ok(_) => {}
                // It came after the memory had gone.
                Err(error) => assert_eq!((error, fault), (FaultError::NotMapped, INSIDE)),
            }
            if round < held.calls {
                tell(flushed.into_inner(), held.in_time);
            }
            machine.spawn_cpus(2, |_| mm.switch_out());
            mm.validate().expect("broken address space");
            mm.exit();
            (round, calls) = (round + 1, held.calls);
        }
    });
}

/// `again` moments after the flush a verb may change mappings once more, and keep all faults out.
fn faults_elsewhere_go_on(verb: Verb, again: usize) {
    let (mut went_on, mut waited) = (0, 0);
    at_each_moment(verb, ELSEWHERE, |flushed, in_time| {
        went_on += usize::from(flushed && in_time);
        waited += usize::from(flushed && !in_time);
    });
    assert!(went_on > 2 && waited <= again, "went on at {went_on} moments, waited at {waited}");
}

fn faults_wait(verb: Verb, fault: u64) {
    let (mut waited, mut went_on) = (0, 0);
    at_each_moment(verb, fault, |flushed, in_time| {
        waited += usize::from(flushed && !in_time);
        went_on += usize::from(flushed && in_time);
    });
    // When the verb has given the lock back, they go on.
    assert!(waited > 2 && went_on < waited / 2, "waited at {waited} moments, went on at {went_on}");
}

#[test]
fn faults_elsewhere_go_on_beside_munmap() {
    faults_elsewhere_go_on(UNMAP, 0);
}

#[test]
fn faults_elsewhere_go_on_beside_a_mapping_over_another() {
    faults_elsewhere_go_on(MAP_OVER, 2);
}

#[test]
fn faults_elsewhere_go_on_beside_a_drop_of_whole_tables() {
    faults_elsewhere_go_on(DROP, 0);
}

#[test]
fn faults_elsewhere_go_on_beside_mprotect() {
    faults_elsewhere_go_on(PROTECT, 0);
}

#[test]
fn faults_in_a_range_wait_for_its_verb() {
    [UNMAP, MAP_OVER, DROP, PROTECT].into_iter().for_each(|verb| faults_wait(verb, INSIDE));
}

/// A fault there may map a leaf of 1 GiB over the range, if such folios are allowed by then.
#[test]
fn faults_in_a_gib_without_a_page_wait_for_a_verb_on_a_part_of_it() {
    [DROP_EARLIER, PROTECT_EARLIER].into_iter().for_each(|verb| faults_wait(verb, EMPTY));
}
