//! Memory runs out at each allocation: the verb is done, or changes nothing (invariant 6).

use hosted::raw::RawPages;
use hosted::{FailurePlan, Hosted};
use quire::addr::{Order, VirtAddr};
use quire::error::MmError;
use quire::page_alloc::Gfp;
use quire::vm::{Advice, File, Refusal};

use crate::filethp::support::{
    BASE, HUGE, PAGE, check, check_text, fill, frames, is_large, private, shared, shmem, text,
};
use crate::filethp::world::{R, RW, Space, load, run, store};

const THERE: u64 = BASE + 8 * HUGE;

/// Repeats `scene` with the `nth` allocation failing until there is no `nth`. Returns how often one failed.
fn at_every_index(machine: &Hosted, mut scene: impl FnMut(&mut dyn FnMut(&mut dyn FnMut()))) -> usize {
    let mut failed = 0;
    for nth in 0.. {
        let mut more = false;
        scene(&mut |work| {
            machine.set_failures(FailurePlan::Nth(nth));
            work();
            more = machine.allocations_failed() > 0;
            machine.set_failures(FailurePlan::Off);
        });
        if !more {
            return failed;
        }
        failed += 1;
        assert!(failed < 1000, "it comes to no end");
    }
    failed
}

#[test]
fn a_collapse_may_fail_at_every_allocation() {
    frames(|machine, manager| {
        let (mut done, mut refused) = (0, 0);
        let failed = at_every_index(machine, |fail| {
            let file = manager.shmem(HUGE).unwrap();
            run(manager, |mm| {
                let other = manager.new_mm().unwrap();
                other.mmap(&shared(&file, THERE, HUGE)).unwrap();
                mm.mmap(&shared(&file, BASE, HUGE)).unwrap();
                fill(machine, mm, BASE, (0..512).filter(|page| page % 3 > 0));
                let rss = mm.rss().shmem;
                fail(&mut || {
                    let report = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
                    assert_eq!(report.copied + report.all_refused(), 1);
                    if report.copied == 1 { done += 1 } else { refused += 1 }
                });
                assert!(is_large(machine, mm, BASE) || mm.rss().shmem <= rss);
                mm.validate().unwrap();
                for page in 0..512 {
                    let expected = if page % 3 > 0 { crate::filethp::support::word(page) } else { 0 };
                    assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(expected), "page {page}");
                }
                crate::filethp::support::inside(mm, &other, || {
                    check(machine, &other, THERE, (0..512).filter(|page| page % 3 > 0));
                });
                other.validate().unwrap();
                other.exit();
            });
            drop(file);
            manager.validate().unwrap();
        });
        assert!(failed >= 1 && done > 0, "{failed} failures, {done} done, {refused} refused");
    });
}

/// Calls that unmap a part of a large leaf are done, or refused with nothing changed. Changes of the file are
/// always done.
#[test]
fn verbs_may_fail_at_every_allocation() {
    type Verb = fn(&Space<'_>, &File<'_, Hosted>) -> bool;
    let verbs: [(Verb, bool); 6] = [
        (|mm, _| mm.munmap(VirtAddr(BASE + 100 * PAGE), PAGE).is_ok(), true),
        (|mm, _| mm.madvise(VirtAddr(BASE + 100 * PAGE), PAGE, Advice::DontNeed).is_ok(), true),
        (|mm, _| mm.mprotect(VirtAddr(BASE + 100 * PAGE), PAGE, R).is_ok(), true),
        (|mm, _| mm.write_protect_marked(VirtAddr(BASE), HUGE).is_ok(), true),
        (|mm, _| mm.fork().map(quire::vm::Mm::exit).is_ok(), true),
        (|_, file| file.truncate(100 * PAGE).is_ok(), false),
    ];
    for (at, (verb, may_fail)) in verbs.into_iter().enumerate() {
        frames(|machine, manager| {
            at_every_index(machine, |fail| {
                let file = manager.shmem(HUGE).unwrap();
                run(manager, |mm| {
                    mm.mmap(&shared(&file, BASE, HUGE)).unwrap();
                    mm.mmap(&private(&file, THERE, HUGE, RW)).unwrap();
                    fill(machine, mm, BASE, 0..512);
                    crate::filethp::support::moved(mm, BASE);
                    check(machine, mm, THERE, 0..1);
                    assert!(is_large(machine, mm, THERE));
                    let mut done = true;
                    fail(&mut || done = verb(mm, &file));
                    assert!(done || may_fail, "verb {at}");
                    mm.validate().unwrap();
                    if !done {
                        fill(machine, mm, BASE, 0..512);
                        check(machine, mm, BASE, 0..512);
                    }
                    check(machine, mm, THERE, 0..100);
                });
                drop(file);
                manager.validate().unwrap();
            });
        });
    }
}

/// A store to a private mapping behind a large leaf, without memory to split it: the caller gets an error,
/// and can try again.
#[test]
fn a_private_store_may_fail() {
    shmem(|machine, manager, mm, file| {
        crate::filethp::support::moved(mm, BASE);
        mm.mmap(&private(file, THERE, HUGE, RW)).unwrap();
        check(machine, mm, THERE, 0..512);
        let mut kept = Vec::new();
        while let Ok(frame) = manager.pages().alloc_raw(Gfp::KERNEL, Order::FRAME) {
            kept.push(frame);
        }
        assert!(store(machine, mm, THERE + 9 * PAGE, 5).is_err());
        check(machine, mm, THERE, 0..512);
        kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
        store(machine, mm, THERE + 9 * PAGE, 5).unwrap();
        check(machine, mm, THERE, (0..512).filter(|&page| page != 9));
        check(machine, mm, BASE, 0..512);
    });
}

/// One page cannot be read: those that were read before it stay.
#[test]
fn reads_may_fail() {
    text(|machine, manager, mm, file| {
        let mut read = 512;
        // The last number is the last missing page.
        for nth in [0, 1, 100, 410] {
            machine.files().set_read_failures(FailurePlan::Nth(nth));
            let report = mm.collapse(VirtAddr(BASE + HUGE), HUGE).unwrap();
            machine.files().set_read_failures(FailurePlan::Off);
            read += nth;
            assert_eq!(report.last, Some(Refusal::Io), "{report:?}");
            assert_eq!(file.resident(), read);
            assert!(!is_large(machine, mm, BASE + HUGE));
            manager.validate().unwrap();
        }
        check_text(machine, mm, BASE + HUGE - 512 * PAGE, 0..512);
        crate::filethp::support::moved(mm, BASE);
        check_text(machine, mm, BASE, 0..1024);
    });
}

/// Memory runs out while pages are read: the error says so, and those that were read before stay.
#[test]
fn memory_may_run_out_while_pages_are_read() {
    text(|machine, manager, mm, file| {
        for nth in [0, 1, 2, 100, 300] {
            machine.set_failures(FailurePlan::From(nth));
            let report = mm.collapse(VirtAddr(BASE + HUGE), HUGE).unwrap();
            machine.set_failures(FailurePlan::Off);
            assert_eq!(report.last, Some(Refusal::NoMemory), "allocation {nth}: {report:?}");
            assert!(!is_large(machine, mm, BASE + HUGE));
            manager.validate().unwrap();
        }
        assert!((512 + 300..1024).contains(&file.resident()), "{} pages were read", file.resident());
        crate::filethp::support::moved(mm, BASE + HUGE);
        check_text(machine, mm, BASE, 0..1024);
    });
}

/// A page cannot be written back: it stays dirty, and the pager is called with no lock held.
#[test]
fn writes_may_fail() {
    text(|machine, _, mm, file| {
        mm.mmap(&shared(file, THERE, HUGE)).unwrap();
        (0..3).for_each(|page| store(machine, mm, THERE + page * PAGE, page).unwrap());
        machine.files().set_write_failures(FailurePlan::Nth(1));
        assert_eq!(file.sync(), Err(MmError::Io));
        assert_eq!(file.dirty(), 1);
        machine.files().set_write_failures(FailurePlan::Off);
        file.sync().unwrap();
        assert_eq!(file.dirty(), 0);
        assert_eq!(machine.files().written_pages(crate::filethp::support::TEXT).len(), 3);
    });
}
