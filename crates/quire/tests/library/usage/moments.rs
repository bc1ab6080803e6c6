//! Memory is counted while another CPU changes a leaf of it.

use hosted::{HostedConfig, InterruptPlan};
use quire::addr::{VirtAddr, VirtRange};
use quire::hugetlb::HugeSize::Size2M;
use quire::vm::Access;
use testkit::{PATIENCE, held_up};

use crate::hugetlb::world::{BASE, HUGE, private, store, with_config, within};

const PAGES: u64 = 4;

/// A leaf is busy while a copy of its page replaces it. A count that comes to it waits, and leaves out neither that page
/// nor those behind it.
#[test]
fn a_page_that_is_being_copied_is_counted() {
    let machine = HostedConfig::new(64 << 20).with_cpus(2);
    with_config(machine, Size2M, 2 * PAGES, |machine, manager| {
        let scene = |moment| {
            let mm = manager.new_mm().unwrap();
            within(&mm, || {
                mm.mmap(&private(BASE, PAGES)).unwrap();
                (0..PAGES).for_each(|page| store(machine, &mm, BASE + page * HUGE, page).unwrap());
            });
            let child = mm.fork().unwrap();
            let copy = || mm.fault(VirtAddr(BASE + HUGE), Access::Write).map(drop);
            let count = || {
                let mut frames = 0;
                let all = VirtRange::from_len(VirtAddr(BASE), PAGES * HUGE);
                mm.mapped(all, |run| frames += run.frames.count);
                frames
            };
            let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, copy, count);
            let all = (Ok(()), PAGES * HUGE / 4096);
            assert_eq!((held.first, held.second), all, "at moment {moment} of {}", held.calls);
            child.exit();
            mm.exit();
            (held.calls, held.in_time)
        };
        let (calls, _) = scene(u64::MAX);
        let waited = (0..calls).filter(|&moment| !scene(moment).1).count();
        assert!(waited > 0, "no leaf was busy");
    });
}
