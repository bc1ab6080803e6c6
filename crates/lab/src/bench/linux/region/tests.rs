use rustix::mm::Advice;

use super::Region;
use crate::bench::folio::PAGE;

#[test]
fn touched_pages_keep_their_mark_until_given_back() {
    let region = Region::map(8 * PAGE).unwrap();
    assert_eq!((region.pages(), region.start() % (2 << 20)), (8, 0));
    assert_eq!(region.marked(), 0);
    region.touch_all();
    assert_eq!(region.marked(), 8);
    region.advise_pages(2, 3, Advice::LinuxDontNeed).unwrap();
    assert_eq!(region.marked(), 5);
}

#[test]
fn clearing_clears_every_byte_at_every_folio_size() {
    for folio in [PAGE, 4 * PAGE, 8 * PAGE] {
        let mut region = Region::map(8 * PAGE).unwrap();
        region.as_bytes().fill(0xa5);
        region.clear_as_linux(folio);
        assert!(region.as_bytes().iter().all(|byte| *byte == 0));
    }
}

/// C1: another mapping may be there by then.
#[test]
fn dropping_an_unmapped_region_leaves_its_place_alone() {
    let mut gone = Region::map(4 << 20).unwrap();
    gone.unmap().unwrap();
    // The kernel places new mappings in the first gap from the top, and this one fits into the hole exactly.
    let others: Vec<Region> = (0..4).map(|_| Region::map(PAGE).unwrap()).collect();
    others.iter().for_each(Region::touch_all);
    drop(gone);
    assert!(others.iter().all(|other| other.marked() == 1));
}

#[test]
#[should_panic(expected = "unmapped twice")]
fn unmapping_twice_is_refused() {
    let mut region = Region::map(PAGE).unwrap();
    region.unmap().unwrap();
    let _ = region.unmap();
}

#[test]
#[should_panic(expected = "pieces that do not fit")]
fn pieces_that_reach_beyond_the_region_are_refused() {
    let _ = Region::map(8 * PAGE).unwrap().unmap_each(3 * PAGE);
}

#[test]
fn pieces_go_one_after_the_other() {
    let mut region = Region::map(8 * PAGE).unwrap();
    region.touch_all();
    region.unmap_each(2 * PAGE).unwrap();
}

#[test]
#[should_panic(expected = "do not fill")]
fn clearing_beyond_the_region_is_refused() {
    Region::map(8 * PAGE).unwrap().clear_as_linux(16 * PAGE);
}

#[test]
fn moved_memory_stands_where_the_target_was() {
    let mut from = Region::map_beyond(4 << 20, 4 << 20, 0).unwrap();
    let mut to = Region::map_beyond(4 << 20, 4 << 20, PAGE).unwrap();
    assert_eq!((from.start() % (4 << 20), to.start() % (4 << 20)), (0, PAGE));
    from.touch_all();
    to.touch(0);
    from.move_to(&mut to).unwrap();
    assert_eq!(to.marked(), to.pages() as u64);
    // Dropping this one must not unmap the other's memory.
    drop(from);
    assert!(to.is_marked(7));
}

#[test]
fn protected_memory_keeps_its_contents_and_can_be_written_again() {
    let region = Region::map(8 * PAGE).unwrap();
    region.touch_all();
    region.protect(rustix::mm::ProtFlags::READ).unwrap();
    assert_eq!(region.marked(), 8);
    region.protect(rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE).unwrap();
    region.touch_all();
}
