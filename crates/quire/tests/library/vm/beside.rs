//! Faults beside a verb that works on a range: elsewhere they go on, inside they wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::vm::{Access, Advice, FolioPolicy};

use crate::vm::world::{MIB, R, Space, anonymous, store, with_manager};
use testkit::held_up_to_look;

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

/// How long a fault may take that does not wait for the verb, on a busy host. One that waits is found at
/// once.
const LONG: Duration = Duration::from_secs(30);

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

/// A moment at which the verb is held up.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// The verb has flushed.
    flushed: bool,
    /// The fault ended meanwhile: it did not wait for the verb.
    in_time: bool,
}

/// Holds the verb up at each of its calls of the platform while another CPU faults.
fn moments(verb: Verb, fault: u64) -> Vec<Moment> {
    let mut moments = Vec::new();
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
                LONG,
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
                moments.push(Moment { flushed: flushed.into_inner(), in_time: held.in_time });
            }
            machine.spawn_cpus(2, |_| mm.switch_out());
            mm.validate().expect("broken address space");
            mm.exit();
            (round, calls) = (round + 1, held.calls);
        }
    });
    moments
}

/// While the verb works on its range, before its flush and behind it, a fault elsewhere goes on and one
/// inside waits. `again` moments behind the flush it may change mappings once more, and keep all faults out.
fn only_faults_inside_wait(verb: Verb, again: usize) {
    let (elsewhere, inside) = (moments(verb, ELSEWHERE), moments(verb, INSIDE));
    assert_eq!(elsewhere.len(), inside.len(), "the verb's calls of the platform");
    let (mut before, mut behind, mut all_wait) = (0, 0, 0);
    for (elsewhere, inside) in elsewhere.iter().zip(&inside) {
        assert_eq!(elsewhere.flushed, inside.flushed);
        let apart = usize::from(elsewhere.in_time && !inside.in_time);
        *if elsewhere.flushed { &mut behind } else { &mut before } += apart;
        all_wait += usize::from(elsewhere.flushed && !elsewhere.in_time);
    }
    assert!(before > 2, "only faults inside waited at {before} moments before the flush");
    assert!(behind > 2, "only faults inside waited at {behind} moments behind the flush");
    assert!(all_wait <= again, "all faults waited at {all_wait} moments behind the flush");
}

#[test]
fn only_faults_inside_wait_beside_munmap() {
    only_faults_inside_wait(UNMAP, 0);
}

#[test]
fn only_faults_inside_wait_beside_a_mapping_over_another() {
    only_faults_inside_wait(MAP_OVER, 2);
}

#[test]
fn only_faults_inside_wait_beside_a_drop_of_whole_tables() {
    only_faults_inside_wait(DROP, 0);
}

#[test]
fn only_faults_inside_wait_beside_mprotect() {
    only_faults_inside_wait(PROTECT, 0);
}

/// A fault there may map a leaf of 1 GiB over the range, if such folios are allowed by then.
#[test]
fn faults_in_a_gib_without_a_page_wait_for_a_verb_on_a_part_of_it() {
    for verb in [DROP_EARLIER, PROTECT_EARLIER] {
        let moments = moments(verb, EMPTY);
        let count = |in_time| moments.iter().filter(|at| at.flushed && at.in_time == in_time).count();
        let (waited, went_on) = (count(false), count(true));
        // When the verb has given the lock back, they go on.
        assert!(waited > 2 && went_on < waited / 2, "waited at {waited} moments, went on at {went_on}");
    }
}
