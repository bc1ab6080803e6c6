//! A handler of missing pages registers during a collapse of a file: from then on it is told of all missing
//! pages, and none is filled with zeroes.

use std::time::Duration;

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::vm::{
    Backing, Collapsed, FolioPolicy, MapRequest, Refusal, Remap, UserfaultChanges, UserfaultModes,
};

use crate::filethp::support::{BASE, HUGE, PAGE, check, fill, is_large, shared};
use crate::filethp::world::{MIB, Manager, Space, with_manager};
use testkit::{HeldUp, held_up};

const PATIENCE: Duration = Duration::from_millis(15);
/// The collapsed pages, the second 512 of their file.
const BLOCK: u64 = BASE + HUGE;
/// A mapping of the page before them, and its new address after a move.
const BEFORE: u64 = BASE + 4 * HUGE + 511 * PAGE;
const THERE: u64 = BASE + 8 * HUGE;
const GROWN: u64 = 101 * PAGE;

/// How the handler's range comes to cover the pages.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Registers,
    /// It covers a mapping of the page before them, which grows.
    Grows(Remap),
}

/// Collapses pages of which every third is missing, while a handler registers. Returns the result, how many
/// pages were there when it had registered, and how many were added since.
fn come(
    machine: &Hosted,
    manager: &Manager<'_>,
    way: Way,
    moment: InterruptPlan,
) -> (HeldUp<Collapsed, u64>, u64) {
    let file = manager.shmem(2 * HUGE).expect("memory");
    let [mm, other] = [(); 2].map(|()| manager.new_mm().expect("memory"));
    let there = || (0..512).filter(|page| page % 3 > 0);
    mm.switch_in();
    mm.mmap(&shared(&file, BASE, 2 * HUGE)).unwrap();
    fill(machine, &mm, BLOCK, there());
    mm.switch_out();
    let handler = manager.userfault(UserfaultChanges::NONE).expect("few handlers");
    let watch = |at: u64, len: u64| {
        other.userfault_register(&handler, VirtAddr(at), len, UserfaultModes::MISSING).expect("memory");
    };
    if way == Way::Registers {
        other.mmap(&shared(&file, BASE, 2 * HUGE)).unwrap();
    } else {
        let backing = Backing::File { file: &file, page_offset: 511 };
        other.mmap(&MapRequest { backing, ..shared(&file, BEFORE, PAGE) }).unwrap();
        watch(BEFORE, PAGE);
    }
    let come = || {
        match way {
            Way::Registers => watch(BLOCK, HUGE),
            Way::Grows(to) => _ = other.mremap(VirtAddr(BEFORE), PAGE, GROWN, to).expect("there is room"),
        }
        file.resident()
    };
    let collapse = || mm.collapse(VirtAddr(BLOCK), HUGE).expect("a mapping");
    let held = held_up(machine, moment, PATIENCE, collapse, come);
    let came = file.resident() - held.second;
    // After the exit of the handler's address space, pages are no longer kept missing.
    Space::exit(other);
    drop(handler);
    mm.collapse(VirtAddr(BLOCK), HUGE).expect("a mapping");
    mm.switch_in();
    assert!(is_large(machine, &mm, BLOCK));
    check(machine, &mm, BLOCK, there());
    mm.switch_out();
    mm.exit();
    (held, came)
}

#[test]
fn what_a_handler_is_to_bring_stays_missing_from_when_it_comes() {
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let ways = [Way::Registers, Way::Grows(Remap::InPlace), Way::Grows(Remap::Fixed(VirtAddr(THERE)))];
        for way in ways {
            let (mut refused, mut complete) = (0, 0);
            let calls = come(machine, manager, way, InterruptPlan::Count).0.calls;
            for moment in (0..calls).step_by((calls / 100).max(1) as usize) {
                let (held, came) = come(machine, manager, way, InterruptPlan::Nth(moment));
                assert!(!held.in_time || came == 0, "{way:?}, moment {moment}: {came} pages of zeroes");
                refused += u64::from(held.in_time && held.first.refused(Refusal::Watched) > 0);
                complete += u64::from(held.first.copied == 1);
            }
            assert!(refused > 5 && complete > 5, "{way:?}: refused {refused} times, complete {complete}");
        }
    });
}
