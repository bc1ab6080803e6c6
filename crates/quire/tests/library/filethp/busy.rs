//! Another task is changing pages of a file: the collapse is refused and changes nothing; the next one
//! succeeds.

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::stats::Stat;
use quire::vm::{Access, Advice, File, FolioPolicy, MapRequest, Refusal};

use crate::filethp::support::{
    BASE, HUGE, PAGE, RX, TEXT, check_text, fill, frame_at, is_large, moved, private, shared,
};
use crate::filethp::world::{MIB, Manager, R, RW, Space, load, with_manager};
use testkit::{PATIENCE, held_up};

/// A machine, two address spaces that map a file's text, and the file.
struct Scene<'a, 'm> {
    machine: &'a Hosted,
    manager: &'m Manager<'m>,
    mm: &'a Space<'m>,
    other: &'a Space<'m>,
    file: &'a File<'m, Hosted>,
}

impl Scene<'_, '_> {
    fn seen(&self) -> impl PartialEq {
        let mut counts = Vec::new();
        let all = self.machine.ranges().last().expect("memory").end().0 / PAGE;
        self.manager
            .kpagecount(FrameRange::new(Frame(0), all), |run, count| counts.push((run.start.0, count)));
        let spaces = [self.mm, self.other];
        let stats = [Stat::ThpCollapseAlloc, Stat::ThpCollapsePages].map(|stat| self.manager.stat(stat));
        (
            spaces.map(|mm| self.machine.leaves(mm.root())),
            spaces.map(Space::rss),
            counts,
            stats,
            self.file.dirty(),
        )
    }
}

/// CPU 0 works, and CPU 1 collapses at every moment of it. Returns how often the collapse was refused because
/// a page was busy, and changed nothing. It may have moved pages before it met the busy one.
fn at_every_moment(missing: Option<u64>, work: impl Fn(&Scene<'_, '_>) + Sync) -> u64 {
    let (mut same, mut later) = (0, 0);
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        machine.files().set_size(TEXT, HUGE);
        let mut round = 0;
        loop {
            let file = manager.open(TEXT).expect("memory");
            let [mm, other] = [(); 2].map(|()| manager.new_mm().expect("memory"));
            mm.mmap(&private(&file, BASE, HUGE, RX)).unwrap();
            other.mmap(&private(&file, BASE, HUGE, RW)).unwrap();
            for page in (0..512).filter(|&page| Some(page / 16) != missing) {
                mm.fault(VirtAddr(BASE + page * PAGE), Access::Read).unwrap();
            }
            let scene = Scene { machine, manager, mm: &mm, other: &other, file: &file };
            let collapse = || {
                let before = scene.seen();
                let done = mm.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
                (done, before == scene.seen())
            };
            let held = held_up(machine, InterruptPlan::Nth(round), PATIENCE, || work(&scene), collapse);
            let (done, unchanged) = held.second;
            if held.in_time && done.refused(Refusal::Busy) > 0 {
                same += u64::from(unchanged);
                later += u64::from(!unchanged);
            }
            let after = mm.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
            assert_eq!(after.all_refused(), 0, "call {round}: {after:?}");
            for each in [mm, other] {
                each.switch_in();
                check_text(machine, &each, BASE, 0..512);
                each.switch_out();
                each.validate().expect("broken address space");
                each.exit();
            }
            assert_eq!(file.resident(), 512);
            round += 1;
            // From here on the moments repeat.
            if round > held.calls.min(400) {
                break;
            }
        }
        println!("{round} moments, {same} times nothing had changed, {later} times something had moved");
    });
    same
}

#[test]
fn a_page_that_moves_is_in_the_way() {
    let migrate = |scene: &Scene<'_, '_>| {
        // If the page is already in the block of its neighbours, they stay there.
        if let Some(frame) = frame_at(scene.machine, scene.mm, BASE + 9 * PAGE) {
            let _stays = scene.manager.migrate(frame);
        }
    };
    assert!(at_every_moment(None, migrate) > 0);
}

#[test]
fn a_page_that_is_read_is_in_the_way() {
    let read = |scene: &Scene<'_, '_>| {
        scene.other.fault(VirtAddr(BASE + 37 * PAGE), Access::Read).expect("a page of the file");
    };
    assert!(at_every_moment(Some(2), read) > 0);
}

#[test]
fn a_leaf_that_is_replaced_is_in_the_way() {
    let copy = |scene: &Scene<'_, '_>| {
        let at = VirtAddr(BASE + 9 * PAGE);
        scene.mm.switch_in();
        scene.mm.mprotect(VirtAddr(BASE), HUGE, RW).expect("all of it");
        scene.mm.fault(at, Access::Write).expect("memory");
        // Copies stay small, so the copy is dropped again.
        scene.mm.madvise(at, PAGE, Advice::DontNeed).expect("mapped");
        scene.mm.switch_out();
    };
    assert!(at_every_moment(None, copy) > 0);
}

/// Only one task at a time collapses a file.
#[test]
fn a_file_that_another_collapses_is_in_the_way() {
    let collapse = |scene: &Scene<'_, '_>| {
        scene.other.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
    };
    assert!(at_every_moment(None, collapse) > 0);
}

/// While a file is being truncated, no leaf maps the part that is cut off, even if another task extends the
/// file again.
#[test]
fn what_is_being_cut_off_is_not_mapped_with_the_rest() {
    let mut round = 0;
    loop {
        let mut calls = 0;
        with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
            manager.set_folio_policy(FolioPolicy::FRAMES);
            machine.files().set_size(TEXT, HUGE);
            let file = manager.open(TEXT).expect("memory");
            let [mm, other, third] = [(); 3].map(|()| manager.new_mm().expect("memory"));
            for each in [&mm, &other, &third] {
                each.mmap(&private(&file, BASE, HUGE, RX)).unwrap();
            }
            moved(&mm, BASE);
            let grow = || {
                machine.files().set_size(TEXT, HUGE);
                // At the end of a moment at which the file is short.
                let _beyond = other.fault(VirtAddr(BASE + 3 * PAGE), Access::Read);
            };
            let truncate = || file.truncate(HUGE / 2).expect("the pager can");
            calls = held_up(machine, InterruptPlan::Nth(round), PATIENCE, truncate, grow).calls;
            machine.files().set_size(TEXT, HUGE);
            third.fault(VirtAddr(BASE + 300 * PAGE), Access::Read).expect("the file is long again");
            let page = |mm: &Space<'_>| {
                let leaf = machine.probe(mm.root(), VirtAddr(BASE + 300 * PAGE))?;
                Some(leaf.frame.add(300 % leaf.frames))
            };
            assert!(page(&third).is_some());
            for each in [&mm, &other] {
                assert!(page(each).is_none_or(|shown| Some(shown) == page(&third)), "call {round}");
            }
            [mm, other, third].into_iter().for_each(Space::exit);
        });
        round += 1;
        // Later on pages that were cut off are dropped one by one.
        if round > calls.min(100) {
            break;
        }
    }
    assert!(round > 10, "{round} moments");
}

/// An address space that maps a file by one leaf of 2 MiB, and two tasks that use both at once.
struct Split<'a, 'm> {
    mm: &'a Space<'m>,
    file: &'a File<'m, Hosted>,
}

/// Drops one page, so that the leaf is split while faults run.
fn drop_page(split: &Split<'_, '_>) {
    split.mm.madvise(VirtAddr(BASE + 9 * PAGE), PAGE, Advice::DontNeed).expect("mapped");
}

/// CPU 0 does the first work and is held up at every moment of it while CPU 1 does the second. `shmem`: the
/// file is shared memory, full of words; else it is [`TEXT`], mapped for reading.
fn at_every_moment_of(
    shmem: bool,
    first: impl Fn(&Split<'_, '_>) + Sync,
    second: impl Fn(&Split<'_, '_>) + Sync,
    check: impl Fn(&Hosted, &Split<'_, '_>, u64),
) {
    let mut round = 0;
    loop {
        let mut calls = 0;
        with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
            manager.set_folio_policy(FolioPolicy::FRAMES);
            machine.files().set_size(TEXT, HUGE);
            let file = if shmem { manager.shmem(HUGE) } else { manager.open(TEXT) }.expect("memory");
            let mm = manager.new_mm().expect("memory");
            let right = if shmem { RW } else { R };
            mm.mmap(&MapRequest { prot: right, ..shared(&file, BASE, HUGE) }).unwrap();
            mm.switch_in();
            if shmem {
                fill(machine, &mm, BASE, 0..512);
            } else {
                mm.madvise(VirtAddr(BASE), HUGE, Advice::PopulateRead).unwrap();
                file.write_at(0, &[7; HUGE as usize]).unwrap();
            }
            assert_eq!(mm.collapse(VirtAddr(BASE), HUGE).unwrap().all_refused(), 0);
            assert!(is_large(machine, &mm, BASE));
            mm.switch_out();
            let split = Split { mm: &mm, file: &file };
            let plan = InterruptPlan::Nth(round);
            calls = held_up(machine, plan, PATIENCE, || first(&split), || second(&split)).calls;
            mm.validate().unwrap_or_else(|fault| panic!("call {round}: {fault:?}"));
            mm.switch_in();
            check(machine, &split, round);
            mm.switch_out();
            mm.exit();
        });
        round += 1;
        if round > calls.min(200) {
            break;
        }
    }
    assert!(round > 10, "{round} moments");
}

/// Invariant W6: a write-back takes the right to store from leaves, and from nothing that came in their place.
#[test]
fn a_leaf_is_split_during_a_write_back() {
    let sync = |split: &Split<'_, '_>| split.file.sync().expect("the pager can");
    at_every_moment_of(false, sync, drop_page, |machine, split, round| {
        for page in 0..512 {
            let seen = load(machine, split.mm, BASE + page * PAGE);
            assert_eq!(seen, Ok(u64::from_ne_bytes([7; 8])), "page {page} after call {round}");
        }
        assert_eq!(split.file.dirty(), 0);
    });
}

/// What a hole takes from a file is mapped nowhere, though the leaf that maps it is being split.
#[test]
fn a_hole_is_punched_while_a_leaf_is_split() {
    let punch = |split: &Split<'_, '_>| split.file.punch_hole(0..HUGE).expect("shared memory");
    at_every_moment_of(true, drop_page, punch, |machine, split, round| {
        assert_eq!(split.mm.rss().shmem, 0, "call {round}");
        for page in 0..512 {
            let seen = load(machine, split.mm, BASE + page * PAGE);
            assert_eq!(seen, Ok(0), "page {page} after call {round}");
        }
    });
}
