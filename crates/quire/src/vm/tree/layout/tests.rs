use super::*;
use crate::arch::Protection;
use crate::limits::STACK_GUARD_BYTES;
use crate::vm::mapping::vma::{Vma, VmaAttributes, VmaFlags};
use crate::vm::tree::tests::{boxed, unboxed};

const MIB: u64 = 1 << 20;

fn tree(ranges: &[(u64, u64, bool)]) -> VmaTree {
    let mut tree = VmaTree::new();
    for &(start, len, grows) in ranges {
        let mut attributes = VmaAttributes::anonymous(Protection::READ);
        attributes.flags = VmaFlags::NONE.with_if(VmaFlags::GROWS_DOWN, grows);
        tree.insert(boxed(Vma::new(VirtRange::from_len(VirtAddr(start), len), attributes))).unwrap();
    }
    tree
}

fn free(mut tree: VmaTree) {
    while let Some(node) = tree.pop_first() {
        unboxed(node);
    }
}

fn place(
    layout: &Layout,
    tree: &VmaTree,
    addr: u64,
    len: u64,
    placement: Placement,
    large: bool,
) -> Result<u64, MmError> {
    layout.place(tree, VirtAddr(addr), len, placement, Fit::large_if(large)).map(|range| {
        assert_eq!(range.len(), len);
        range.start.0
    })
}

#[test]
fn goes_below_the_base_and_fills_gaps() {
    let layout = Layout::new(PagingMode::FourLevel);
    let base = layout.mmap_base.0;
    let used = tree(&[(base - 3 * MIB, MIB, false), (base - MIB, MIB, false)]);
    assert_eq!(place(&layout, &used, 0, 4096, Placement::Hint, true), Ok(base - MIB - 4096));
    assert_eq!(place(&layout, &used, 0, 3 * MIB, Placement::Hint, true), Ok(base - 6 * MIB));
    free(used);
}

#[test]
fn large_anonymous_memory_is_aligned() {
    let layout = Layout { mmap_base: VirtAddr((64 << 30) - 4096), ..Layout::new(PagingMode::FourLevel) };
    let none = VmaTree::new();
    let base = layout.mmap_base.0;
    assert_eq!(place(&layout, &none, 0, 4 * MIB, Placement::Hint, true), Ok((64 << 30) - 6 * MIB));
    assert_eq!(place(&layout, &none, 0, 4 * MIB, Placement::Hint, false), Ok(base - 4 * MIB));
    assert_eq!(place(&layout, &none, 0, 3 * MIB, Placement::Hint, true), Ok(base - 3 * MIB), "no multiple");
}

#[test]
fn hints_are_taken_when_free() {
    let layout = Layout::new(PagingMode::FourLevel);
    let stack = 1 << 40;
    let used = tree(&[(stack, MIB, true)]);
    let guard = stack - STACK_GUARD_BYTES;
    assert_eq!(place(&layout, &used, 0x1234_5678, 4096, Placement::Hint, false), Ok(0x1234_5000));
    assert_eq!(place(&layout, &used, 1, 4096, Placement::Hint, false), Ok(layout.mmap_base.0 - 4096));
    assert_eq!(place(&layout, &used, 0x1000, 4096, Placement::Hint, false), Ok(layout.lowest.0));
    assert_eq!(place(&layout, &used, guard - 4096, 4096, Placement::Hint, false), Ok(guard - 4096));
    let refused = place(&layout, &used, guard, 4096, Placement::Hint, false).unwrap();
    assert_eq!(refused, layout.mmap_base.0 - 4096, "the guard gap stays free");
    free(used);
}

#[test]
fn fixed_addresses_are_checked() {
    let layout = Layout::new(PagingMode::FourLevel);
    let used = tree(&[(MIB, MIB, false)]);
    let end = layout.user.end.0;
    assert_eq!(place(&layout, &used, MIB, 4096, Placement::Fixed, false), Ok(MIB));
    assert_eq!(place(&layout, &used, MIB, 4096, Placement::FixedNoReplace, false), Err(MmError::Exists));
    assert_eq!(place(&layout, &used, 2 * MIB, 4096, Placement::FixedNoReplace, false), Ok(2 * MIB));
    assert_eq!(place(&layout, &used, MIB + 1, 4096, Placement::Fixed, false), Err(MmError::Invalid));
    assert_eq!(place(&layout, &used, 0, 4096, Placement::Fixed, false), Err(MmError::NotPermitted));
    assert_eq!(place(&layout, &used, end, 4096, Placement::Fixed, false), Err(MmError::NoMemory));
    assert_eq!(place(&layout, &used, end - 4096, 4096, Placement::Fixed, false), Ok(end - 4096));
    free(used);
}

#[test]
fn lengths_are_rounded_and_bounded() {
    let layout = Layout::new(PagingMode::FourLevel);
    assert_eq!(layout.length(0, 4096), Err(MmError::Invalid));
    assert_eq!(layout.length(1, 4096), Ok(4096));
    assert_eq!(layout.length(MIB, 2 * MIB), Ok(2 * MIB), "whole huge pages");
    assert_eq!(layout.length(u64::MAX, 4096), Err(MmError::NoMemory));
    assert_eq!(layout.length(layout.user.end.0 + 1, 4096), Err(MmError::NoMemory));
}

#[test]
fn five_levels_need_a_hint() {
    let layout = Layout::new(PagingMode::FiveLevel);
    let none = VmaTree::new();
    assert_eq!(place(&layout, &none, 0, 4096, Placement::Hint, false), Ok(layout.mmap_base.0 - 4096));
    assert_eq!(place(&layout, &none, 1 << 50, 4096, Placement::Hint, false), Ok(1 << 50));
    let high = place(&layout, &none, (1 << 56) - 4096, 8192, Placement::Hint, false).unwrap();
    assert!(high > 1 << 48, "a hint beyond opens the upper part");
    let four = Layout::new(PagingMode::FourLevel);
    assert_eq!(place(&four, &none, 1 << 50, 4096, Placement::Hint, false), Ok(four.mmap_base.0 - 4096));
}

#[test]
fn falls_back_above_the_base() {
    let layout = Layout { mmap_base: VirtAddr(2 * MIB), ..Layout::new(PagingMode::FourLevel) };
    let found = place(&layout, &VmaTree::new(), 0, 4 * MIB, Placement::Hint, false);
    assert_eq!(found, Ok(layout.user.end.0 - 4 * MIB));
}

#[test]
fn low_mappings_fit_31_bits() {
    let layout = Layout::new(PagingMode::FourLevel);
    let used = tree(&[((2 << 30) - MIB, MIB, false)]);
    let low = |addr, len| place(&layout, &used, addr, len, Placement::Low, false);
    assert_eq!(low(0, 4096), Ok((2 << 30) - MIB - 4096));
    assert_eq!(low(0x5000_0000, MIB), Ok(0x5000_0000));
    assert_eq!(low(5 << 30, MIB), Ok((2 << 30) - 2 * MIB), "too high a hint is no hint");
    assert_eq!(low(0, (1 << 30) - MIB), Ok(1 << 30));
    assert_eq!(low(0, 1 << 30), Err(MmError::NoMemory));
    free(used);
}
