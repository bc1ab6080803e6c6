use super::*;
use crate::addr::{Frame, PageSize, VirtAddr};
use crate::arch::Protection;

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

#[test]
fn a_settled_leaf_has_all_that_hardware_could_set() {
    let read = Entry::leaf(Frame(5), PageSize::Size4K, EntryFlags::leaf(Protection::READ));
    let write = read.with(EntryFlags::WRITE);
    assert!(!read.is_settled() && read.with(EntryFlags::ACCESSED).is_settled());
    assert!(!write.with(EntryFlags::ACCESSED).is_settled() && !write.with(EntryFlags::DIRTY).is_settled());
    assert!(write.with(EntryFlags::ACCESSED | EntryFlags::DIRTY).is_settled());
}

#[test]
fn a_busy_entry_is_neither_empty_nor_present_nor_a_run() {
    assert!(Entry::BUSY.is_busy() && !Entry::BUSY.is_empty() && !Entry::BUSY.is_present());
    assert!(!Entry::BUSY.is_leaf(Level::PTE) && !Entry::BUSY.is_table(Level::PMD) && !Entry::EMPTY.is_busy());
    let special =
        Entry::leaf(Frame(0), PageSize::Size4K, EntryFlags::leaf(Protection::READ) | EntryFlags::SPECIAL);
    assert!(!special.is_busy());
}

#[test]
fn a_leaf_without_any_right_is_present_for_the_library_alone() {
    let flags = EntryFlags::leaf(Protection::NONE);
    assert!(!flags.contains(EntryFlags::PRESENT) && !flags.contains(EntryFlags::USER));
    for (size, level) in
        [(PageSize::Size4K, Level::PTE), (PageSize::Size2M, Level::PMD), (PageSize::Size1G, Level::PUD)]
    {
        let leaf = Entry::leaf(Frame(1 << 20), size, flags);
        assert!(leaf.is_present() && leaf.is_leaf(level) && !leaf.is_table(level), "{level:?}");
        assert!(!leaf.is_busy() && !leaf.is_poison() && !leaf.is_empty() && !leaf.allows_fetch());
    }
    assert!(EntryFlags::leaf(Protection::EXEC).contains(EntryFlags::USER | EntryFlags::PRESENT));
}

#[test]
fn only_a_lost_right_is_lost() {
    let of = |bits| EntryFlags::leaf(Protection::from_bits(bits));
    for (before, after) in (0..8).flat_map(|before| (0..8).map(move |after| (before, after))) {
        // Each protection but the empty one includes reading.
        let readable = |bits: u8| if bits == 0 { 0 } else { bits | 1 };
        let lost = readable(before) & !readable(after) != 0;
        assert_eq!(of(before).loses(of(after)), lost, "{before:03b} to {after:03b}");
    }
}
