//! What a mapping says about folio sizes goes before what the machine says.

use quire::addr::{Order, VirtAddr};
use quire::error::MmError;
use quire::vm::{Advice, FolioOverride, FolioPolicy, OrderPolicy, OrderSet};

use super::world::{MIB, Manager, anonymous, run, small, store};

const AT: u64 = 64 * MIB;
const ORDER_4: Order = Order::new(4).unwrap();

/// How many frames a store to fresh memory brings.
fn brought(manager: &Manager<'_>, machine: &hosted::Hosted, folios: FolioOverride, advice: Advice) -> u64 {
    let mut frames = 0;
    run(manager, |mm| {
        mm.mmap(&anonymous(AT, 4 * MIB)).unwrap();
        mm.madvise(VirtAddr(AT), 4 * MIB, advice).unwrap();
        mm.set_folios(VirtAddr(AT), 4 * MIB, folios).unwrap();
        store(machine, mm, AT + 2 * MIB, 1).unwrap();
        frames = mm.rss().anon;
    });
    frames
}

#[test]
fn a_mapping_allows_and_refuses_sizes_by_itself() {
    small(|machine, manager| {
        let allow = FolioOverride::INHERIT.with(ORDER_4, Some(true));
        let refuse = FolioOverride::INHERIT.with(ORDER_4, Some(false));
        let only = FolioOverride::exactly(OrderSet::of(&[4]));
        let brought = |folios, advice| brought(manager, machine, folios, advice);
        manager.set_folio_policy(FolioPolicy::FRAMES);
        assert_eq!(brought(FolioOverride::INHERIT, Advice::HugePage), 1);
        assert_eq!(brought(allow, Advice::HugePage), 16);
        assert_eq!(brought(only, Advice::HugePage), 16);
        let always = FolioPolicy::only(ORDER_4).with(Order::BLOCK, OrderPolicy::Always);
        manager.set_folio_policy(always);
        assert_eq!(brought(FolioOverride::INHERIT, Advice::HugePage), 512);
        assert_eq!(brought(refuse, Advice::HugePage), 512);
        assert_eq!(brought(refuse.with(Order::BLOCK, Some(false)), Advice::HugePage), 1);
        assert_eq!(brought(only, Advice::HugePage), 16);
        assert_eq!(brought(refuse.with(ORDER_4, None), Advice::HugePage), 512);
        // `MADV_NOHUGEPAGE` is the last word.
        assert_eq!(brought(only, Advice::NoHugePage), 1);
    });
}

#[test]
fn a_part_of_a_mapping_has_its_own_sizes() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(AT, 4 * MIB)).unwrap();
            let only = FolioOverride::exactly(OrderSet::of(&[4]));
            mm.set_folios(VirtAddr(AT + MIB), MIB, only).unwrap();
            for (at, frames) in [(AT, 1), (AT + MIB, 16), (AT + 2 * MIB, 1)] {
                let before = mm.rss().anon;
                store(machine, mm, at, 1).unwrap();
                assert_eq!(mm.rss().anon - before, frames, "at {at:#x}");
            }
            assert_eq!(mm.set_folios(VirtAddr(AT + 1), MIB, only), Err(MmError::Invalid));
            assert_eq!(mm.set_folios(VirtAddr(AT + 8 * MIB), MIB, only), Err(MmError::NoMemory));
        });
    });
}
