//! Page tables: what cannot be mapped, and how large leaves split.

use oracle::pagetable::*;
use quire::addr::{Frame, PageSize};
use quire::error::MapError;

fn leaf(frame: u64, size: PageSize) -> Leaf<char> {
    Leaf { frame: Frame(frame), size, flags: 'w' }
}

#[test]
fn mapping_refuses_what_hardware_cannot_say() {
    let mut table = TableModel::new(USER_PAGES);
    assert_eq!(table.map(512, leaf(1024, PageSize::Size2M), 2), Ok(()));
    assert_eq!(table.map(3, leaf(0, PageSize::Size2M), 1), Err(MapError::Unaligned));
    assert_eq!(table.map(0, leaf(5, PageSize::Size2M), 1), Err(MapError::Unaligned));
    assert_eq!(table.map(1535, leaf(7, PageSize::Size4K), 1), Err(MapError::Occupied));
    assert_eq!(table.map(511, leaf(7, PageSize::Size4K), 2), Err(MapError::Occupied));
    assert_eq!(table.map(USER_PAGES - 1, leaf(7, PageSize::Size4K), 2), Err(MapError::BadAddress));
    assert_eq!(table.translate(1025), Some((Frame(1537), 'w')));
    assert_eq!(table.translate(1536), None);
}

#[test]
fn a_gigantic_leaf_splits_only_as_far_as_needed() {
    let mut table = TableModel::new(USER_PAGES);
    table.map(1 << 18, leaf(0, PageSize::Size1G), 1).unwrap();
    let gone = table.unmap((1 << 18) + 513, 1);
    assert_eq!(gone, vec![((1 << 18) + 513, leaf(513, PageSize::Size4K))]);
    assert_eq!(table.leaves().count(), 511 + 511);
    table.protect(1 << 18, 512, |_| 'r');
    assert_eq!(table.translate((1 << 18) + 511), Some((Frame(511), 'r')));
    assert_eq!(table.translate((1 << 18) + 512), Some((Frame(512), 'w')));
    assert_eq!(table.leaf_at(1 << 18).unwrap().1.size, PageSize::Size2M);
}
