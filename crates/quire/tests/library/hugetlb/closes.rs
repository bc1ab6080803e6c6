//! The last handle of a file of huge pages goes while a walk over all files finds the file.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hosted::{HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::hugetlb::{HugeFsLimits, HugeSize::Size2M};
use quire::limits::MAX_HUGE_FS;
use quire::platform::Context;
use quire::vm::{Access, Sharing};

use crate::hugetlb::support::MIB;
use crate::hugetlb::world::{BASE, HUGE, check, info, of_file, run, store, with_config};
use testkit::{PATIENCE, unless_stuck, within};

/// Calls of the platform by the close, of which one comes between its look at the count of references and the
/// lock of the table.
const CLOSE_CALLS: u64 = 3;
/// Moments of the walk, of which some come while it has a reference.
const WALK_MOMENTS: u64 = 40;

/// The close sees its reference as the last one. Then the walk adds one, before the close has the table's lock.
/// The walk's is the last one from then on, so the file is closed once, and by the walk. A close that does not
/// look again under the lock would count the file down twice, and drop pages that the walk uses.
#[test]
fn a_walk_that_finds_a_file_whose_last_handle_goes_closes_it() {
    let machine = HostedConfig::new(64 * MIB).with_cpus(2);
    with_config(machine, Size2M, 4, |machine, manager| {
        let (mut walk_calls, overtaken) = (u64::MAX, AtomicU64::new(0));
        for (close_at, moment) in
            (0..CLOSE_CALLS).flat_map(|at| (0..=WALK_MOMENTS).rev().map(move |of| (at, of)))
        {
            let fs = manager.huge_fs(Size2M, HugeFsLimits::default()).unwrap();
            let file = fs.create(HUGE).unwrap();
            let mut found = None;
            run(manager, |mm| {
                mm.mmap(&of_file(&file, Sharing::Shared, BASE, (0, 1))).unwrap();
                store(machine, mm, BASE, 1).unwrap();
                found = mm.translate(VirtAddr(BASE), Access::Read);
            });
            let frame = found.unwrap().frame;
            let file = Mutex::new(Some(file));
            let [asked, holds, closed] = [const { AtomicBool::new(false) }; 3];
            let walk_at = if walk_calls == u64::MAX { u64::MAX } else { walk_calls * moment / WALK_MOMENTS };
            let came = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
            let calls = machine.spawn_cpus(2, |cpu| {
                let at = |nth, handler: &dyn Fn(), body: &dyn Fn()| {
                    let plan = InterruptPlan::Nth(nth);
                    machine.interrupt_at_calls(plan, Context::HardInterrupt, handler, body).events
                };
                let calls = if cpu.0 == 0 {
                    let hold_up = || {
                        asked.store(true, Ordering::SeqCst);
                        unless_stuck(machine, PATIENCE, || came(&holds));
                    };
                    at(close_at, &hold_up, &|| drop(file.lock().unwrap().take()));
                    asked.store(true, Ordering::SeqCst);
                    closed.store(true, Ordering::SeqCst);
                    0
                } else {
                    within(Duration::from_secs(10), || came(&asked));
                    let hold_up = || {
                        holds.store(true, Ordering::SeqCst);
                        let first = unless_stuck(machine, PATIENCE, || came(&closed));
                        overtaken.fetch_add(u64::from(first), Ordering::SeqCst);
                    };
                    let calls = at(walk_at, &hold_up, &|| {
                        let _ = manager.migrate(frame);
                    });
                    holds.store(true, Ordering::SeqCst);
                    calls
                };
                manager.pages().lists().drain_local();
                calls
            });
            walk_calls = walk_calls.min(calls[1]);
            assert_eq!((fs.info().used, info(manager, Size2M).free), (0, 4), "at {close_at} and {moment}");
            // The file system counts its handle alone, so that it keeps its place and gives it back once.
            let make = || manager.huge_fs(Size2M, HugeFsLimits::default());
            let others: Vec<_> = (1..MAX_HUGE_FS).map(|_| make().unwrap()).collect();
            assert!(make().is_err(), "the file was counted down twice at {close_at} and {moment}");
            drop((fs, others));
            check(manager);
        }
        assert!(overtaken.into_inner() > CLOSE_CALLS, "no close ended while the walk was held up");
    });
}
