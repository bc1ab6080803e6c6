//! A range that the background collapser skips costs a page of its budget, so that a call that skips
//! everything is bounded too.

use quire::addr::VirtAddr;
use quire::vm::Collapser;

use crate::collapse::support::{BASE, HUGE, PAGE};
use crate::collapse::world::{anonymous, run, small};

/// Invariant 7.
#[test]
fn mappings_that_are_too_small_count_as_a_page_each() {
    small(|_, manager| {
        run(manager, |mm| {
            for at in 0..20 {
                mm.mmap(&anonymous(BASE + at * HUGE, PAGE)).unwrap();
            }
            let mut collapser = Collapser::default();
            collapser.pages_to_scan = 8;
            let calls: Vec<_> = (0..3).map(|_| manager.collapse_ahead(&mut collapser)).collect();
            let seen: Vec<_> = calls.iter().map(|call| (call.pages, call.full_scan)).collect();
            assert_eq!(seen, [(8, false), (8, false), (4, true)]);
            mm.munmap(VirtAddr(BASE), 20 * HUGE).unwrap();
        });
    });
}
