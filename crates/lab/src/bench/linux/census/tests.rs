use procfs::PhysicalPageFlags;

use super::{Census, UNTOLD, count, folios, pmd_mapped};
use crate::bench::linux::region::Region;

/// `h` a head, `t` a tail, `s` a small folio, `?` a page of which the kernel tells nothing, `-` an absent page.
fn census(frames: &str) -> Census {
    let flags = |frame| match frame {
        'h' => Some(PhysicalPageFlags::COMPOUND_HEAD),
        't' => Some(PhysicalPageFlags::COMPOUND_TAIL),
        's' => Some(PhysicalPageFlags::ANON),
        '?' => Some(PhysicalPageFlags::empty()),
        _ => None,
    };
    count(frames.chars().map(flags))
}

#[test]
fn folios_end_at_the_next_head_small_folio_or_hole() {
    assert_eq!(census(""), Census::new());
    assert_eq!(census("---"), Census::new());
    assert_eq!(census("sss"), Census::from([(1, 3)]));
    assert_eq!(census("htttht-s"), Census::from([(4, 1), (2, 1), (1, 1)]));
    // After the hole only the second half of a folio is mapped: the folio counts with its mapped pages.
    assert_eq!(census("ht-tt"), Census::from([(2, 2)]));
}

/// On a kernel that brings in memory late, 2 of 100 folios were taken for single frames by this.
#[test]
fn pages_that_the_kernel_tells_nothing_of_are_no_folios() {
    assert_eq!(census("ht????ht?"), Census::from([(2, 2), (UNTOLD, 5)]));
}

#[test]
fn what_was_not_touched_is_not_counted() {
    let region = Region::map(4 << 20).unwrap();
    for page in [0, 7, 8] {
        region.advise(rustix::mm::Advice::LinuxNoHugepage).unwrap();
        region.touch(page);
    }
    match folios("self", &region) {
        Ok(census) => assert_eq!(census, Census::from([(1, 3)])),
        // Without privilege the kernel hides frames; then the reason must say so.
        Err(skip) => assert!(skip.0.contains("root") || skip.0.contains("kpageflags"), "{skip:?}"),
    }
    assert_eq!(pmd_mapped("self", &region).unwrap(), (0, true));
}
