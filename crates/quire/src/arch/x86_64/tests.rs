use super::*;
use crate::addr::{Frame, PageSize, VirtAddr};

#[test]
fn levels_cover_the_address() {
    let addr = VirtAddr(0x00ff_8123_4567_8000);
    let rebuilt = [Level::PGD, Level::P4D, Level::PUD, Level::PMD, Level::PTE]
        .iter()
        .fold(0, |sum, level| sum | (level.index(addr) as u64) << level.shift());
    assert_eq!(rebuilt, addr.0);
}

#[test]
fn user_halves_end_one_page_early() {
    assert_eq!(PagingMode::FourLevel.user_range().end, VirtAddr(0x7fff_ffff_f000));
    assert_eq!(PagingMode::FiveLevel.user_range().end, VirtAddr(0x00ff_ffff_ffff_f000));
}

#[test]
fn leaves_and_tables_are_told_apart() {
    let flags = EntryFlags::leaf(Protection::READ);
    let large = Entry::leaf(Frame(512), PageSize::Size2M, flags);
    assert!(large.is_leaf(Level::PMD) && !large.is_table(Level::PMD));
    let table = Entry::table(Frame(7));
    assert!(table.is_table(Level::PMD) && !table.is_leaf(Level::PMD) && table.is_leaf(Level::PTE));
    assert!(!Entry::EMPTY.is_leaf(Level::PTE) && !Entry::EMPTY.is_table(Level::PUD));
}

#[test]
fn the_frame_field_reaches_52_bits_and_spares_the_marks() {
    let frame = Frame((1 << 40) - 1);
    let flags =
        EntryFlags::leaf(Protection::READ | Protection::WRITE) | EntryFlags::ANON | EntryFlags::LAZY_FREE;
    let entry = Entry::leaf(frame, PageSize::Size4K, flags);
    assert_eq!(entry.frame(), frame);
    assert_eq!(entry.flags(), flags);
}

#[test]
fn a_run_tolerates_history_and_nothing_else() {
    let first = Entry::leaf(Frame(100), PageSize::Size4K, EntryFlags::leaf(Protection::READ));
    let next = Entry::leaf(Frame(101), PageSize::Size4K, EntryFlags::leaf(Protection::READ));
    assert!(next.continues(first, 1));
    assert!(next.with(EntryFlags::DIRTY | EntryFlags::ACCESSED).continues(first, 1));
    assert!(!next.with(EntryFlags::WRITE).continues(first, 1));
    assert!(!next.continues(first, 2));
    assert!(!Entry::EMPTY.continues(first, 1));
}

#[test]
fn protections_become_bits() {
    let exec = EntryFlags::leaf(Protection::READ | Protection::EXEC);
    assert!(!exec.contains(EntryFlags::NO_EXECUTE) && !exec.contains(EntryFlags::WRITE));
    let write = EntryFlags::leaf(Protection::READ | Protection::WRITE);
    assert!(write.contains(EntryFlags::NO_EXECUTE | EntryFlags::WRITE | EntryFlags::USER));
}
