use super::*;

#[test]
fn the_levels_cut_an_address_into_nine_bits_each() {
    let address = 0x0123_4567_89ab_c000_u64;
    let rebuilt = (1..=5).map(|level| index(address, level) << shift(level)).sum::<u64>();
    assert_eq!(rebuilt, address & ((1 << 57) - 1));
    assert_eq!((shift(1), shift(2), shift(3), shift(4), shift(5)), (12, 21, 30, 39, 48));
}

#[test]
fn large_entries_are_leaves_at_two_levels_and_reserved_above() {
    let frame = 0x40_0000_u64;
    for level in 1..=5 {
        let entry = frame << 12 | PRESENT;
        let plain = if level == 1 { Kind::Leaf(frame) } else { Kind::Table(frame) };
        assert_eq!(decode(entry, level), plain);
        let large = if level <= 3 { Kind::Leaf(frame) } else { Kind::Reserved };
        assert_eq!(decode(entry | PAGE_SIZE, level), large);
    }
}

#[test]
fn every_address_bit_below_a_large_leaf_is_reserved_save_the_memory_type() {
    for (level, top) in [(2, 21), (3, 30)] {
        assert_eq!(decode(PRESENT | PAGE_SIZE | 1 << 12, level), Kind::Leaf(0));
        for bit in 13..top {
            assert_eq!(
                decode(PRESENT | PAGE_SIZE | 1 << bit, level),
                Kind::Reserved,
                "bit {bit} at level {level}"
            );
        }
        assert_eq!(decode(PRESENT | PAGE_SIZE | 1 << top, level), Kind::Leaf(1 << (top - 12)));
    }
}

#[test]
fn rights_are_those_of_the_poorest_level() {
    let full = PRESENT | WRITABLE | USER;
    assert_eq!(Rights::ALL.narrowed_by(full), Rights::ALL);
    let poor = Rights::ALL.narrowed_by(USER).narrowed_by(full).narrowed_by(full | EXECUTE_DISABLE);
    assert_eq!(poor, Rights { write: false, user: true, execute: false });
}

#[test]
fn canonical_addresses_extend_their_highest_bit() {
    for (levels, edge) in [(4, 1_u64 << 47), (5, 1 << 56)] {
        assert!(
            is_canonical(0, levels)
                && is_canonical(edge - 1, levels)
                && is_canonical(edge.wrapping_neg(), levels)
        );
        assert!(!is_canonical(edge, levels) && !is_canonical(edge.wrapping_neg() - 1, levels));
    }
}
