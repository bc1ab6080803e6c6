//! What files know of their mappings while these change.

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::error::FaultError;
use quire::vm::{Backing, MapRequest, Remap, Sharing};

use crate::vm::world::{MIB, Manager, Space, anonymous, load, store, with_manager};
use testkit::{PATIENCE, held_up};

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;
const PAGES: u64 = 32;
/// So many pages are left of the file.
const KEPT: u64 = 20;

type Change = fn(&Space<'_>);

/// They pass pages from one mapping to another.
const CHANGES: [Change; 4] = [
    |mm| mm.mprotect(VirtAddr(BASE), 16 * PAGE, Protection::READ).unwrap(),
    |mm| mm.mprotect(VirtAddr(BASE + 16 * PAGE), 16 * PAGE, Protection::READ).unwrap(),
    |mm| mm.mprotect(VirtAddr(BASE + 8 * PAGE), 16 * PAGE, Protection::READ).unwrap(),
    |mm| {
        let (from, to) = (BASE + 16 * PAGE, BASE + MIB);
        mm.mremap(VirtAddr(from), 16 * PAGE, 16 * PAGE, Remap::Fixed(VirtAddr(to))).unwrap();
    },
];

/// CPU 0 changes a mapping of a file, and is held up at a moment while CPU 1 cuts the file short. Then no page
/// behind its end may be reached. Returns how many moments there are.
fn cut_while(machine: &Hosted, manager: &Manager<'_>, change: Change, moment: u64) -> u64 {
    let file = manager.shmem(PAGES * PAGE).unwrap();
    let mm = manager.new_mm().unwrap();
    let backing = Backing::File { file: &file, page_offset: 0 };
    mm.mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, PAGES * PAGE) }).unwrap();
    mm.switch_in();
    (0..PAGES).for_each(|page| store(machine, &mm, BASE + page * PAGE, page).unwrap());
    mm.switch_out();
    let cut = || file.truncate(KEPT * PAGE).unwrap();
    let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, || change(&mm), cut);
    mm.switch_in();
    for page in 0..PAGES {
        let found = [BASE, BASE + MIB - 16 * PAGE].map(|base| load(machine, &mm, base + page * PAGE));
        let gone = [Err(FaultError::BeyondEnd), Err(FaultError::NotMapped)];
        let right =
            if page < KEPT { found.contains(&Ok(page)) } else { found.iter().all(|one| gone.contains(one)) };
        assert!(right, "page {page} after moment {moment}: {found:?}");
    }
    mm.switch_out();
    mm.exit();
    held.calls
}

/// A search in a file finds an address space for each page that it maps, though pages pass from one mapping to
/// another meanwhile (decision 20). The search may wait for the very lock under which a view changes, so what comes
/// first then is left to chance, many times.
#[test]
fn what_lies_behind_the_end_is_gone_from_mappings_that_change_meanwhile() {
    with_manager(HostedConfig::new(32 * MIB).with_cpus(2), |machine, manager| {
        for change in CHANGES {
            let calls = cut_while(machine, manager, change, u64::MAX);
            assert!(calls > 10, "only {calls} moments");
            for moment in (0..calls).cycle().take(200) {
                cut_while(machine, manager, change, moment);
            }
        }
    });
}
