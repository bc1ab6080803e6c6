//! Memory that several address spaces map: each address space is collapsed separately.

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::vm::FolioPolicy;

use crate::collapse::support::{BASE, HUGE, PAGE, check, copied, fill, is_large, leaf, word};
use crate::collapse::world::{FORKS, MIB, Space, anonymous, load, run, store, with_forks};

fn switch(from: &Space<'_>, to: &Space<'_>) {
    from.switch_out();
    to.switch_in();
}

#[test]
fn parent_and_child_are_collapsed_on_their_own() {
    for (fork, first) in FORKS.into_iter().flat_map(|fork| [(fork, true), (fork, false)]) {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            manager.set_folio_policy(FolioPolicy::FRAMES);
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, HUGE)).unwrap();
                fill(machine, mm, BASE, 0..512);
                let child = mm.fork().unwrap();
                let (one, other) = if first { (mm, &child) } else { (&child, mm) };
                let frame = leaf(machine, other, BASE).unwrap().frame;
                assert_eq!(one.collapse(VirtAddr(BASE), HUGE).unwrap().copied, 1);
                assert!(is_large(machine, one, BASE) && !is_large(machine, other, BASE));
                assert_eq!(leaf(machine, other, BASE).unwrap().frame, frame);
                assert_eq!(manager.pages().counts().mapcount(frame), 1, "exactly one side is left");
                assert_eq!((mm.rss().anon, child.rss().anon), (512, 512));
                mm.validate().unwrap();
                child.validate().unwrap();
                // Stores of either side do not reach the other.
                switch(mm, &child);
                store(machine, &child, BASE, 1).unwrap();
                store(machine, &child, BASE + HUGE - PAGE, 2).unwrap();
                switch(&child, mm);
                check(machine, mm, BASE, |_| true);
                store(machine, mm, BASE + PAGE, 3).unwrap();
                switch(mm, &child);
                assert_eq!(load(machine, &child, BASE), Ok(1));
                assert_eq!(load(machine, &child, BASE + PAGE), Ok(word(BASE + PAGE)));
                switch(&child, mm);
                copied_either_way(other);
                child.exit();
            });
        });
    }
}

/// The side that was not collapsed has its pages alone.
fn copied_either_way(mm: &Space<'_>) {
    copied(mm, BASE);
}

#[test]
fn a_fork_after_a_collapse_shares_the_folio() {
    for fork in FORKS {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            manager.set_folio_policy(FolioPolicy::FRAMES);
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, HUGE)).unwrap();
                fill(machine, mm, BASE, 0..512);
                copied(mm, BASE);
                let child = mm.fork().unwrap();
                let frame = leaf(machine, mm, BASE).unwrap().frame;
                assert_eq!(manager.pages().counts().mapcount(frame.add(77)), 2);
                store(machine, mm, BASE, 5).unwrap();
                // The parent's range is in pieces now: it shares 511 of them with the child.
                assert_eq!(mm.collapse(VirtAddr(BASE), HUGE).unwrap().copied, 1);
                assert_eq!(manager.pages().counts().mapcount(frame.add(77)), 1);
                assert_eq!(load(machine, mm, BASE), Ok(5));
                switch(mm, &child);
                check(machine, &child, BASE, |_| true);
                switch(&child, mm);
                child.exit();
                assert_eq!(mm.rss().anon, 512);
            });
        });
    }
}
