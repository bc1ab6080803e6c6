//! What Linux does, by hand: where `tests/linux` cannot go with the model (the heap), and one example of each rule that it
//! can.

use quire::error::{FaultError, MmError};

use oracle::space::*;

const AT: u64 = 0x10_0000_0000;

fn family() -> (Family, SpaceId) {
    let mut family = Family::new(Rules::default());
    family.set_file(1, 3 * PAGE);
    let id = family.create();
    (family, id)
}

fn page(n: u64) -> u64 {
    AT + n * PAGE
}

fn anonymous(family: &mut Family, id: SpaceId, first: u64, pages: u64) {
    family.mmap(id, &Map::anonymous(page(first), pages * PAGE, Prot::Rw)).unwrap();
}

fn file(first: u64, pages: u64, file_page: u64, shared: bool) -> Map {
    Map { file: Some((1, file_page)), shared, ..Map::anonymous(page(first), pages * PAGE, Prot::Rw) }
}

fn word(family: &mut Family, id: SpaceId, n: u64) -> u64 {
    family.read(id, page(n), 0).unwrap().word
}

#[test]
fn a_child_sees_what_was_written_before_and_nothing_after() {
    let (mut family, parent) = family();
    anonymous(&mut family, parent, 0, 2);
    family.write(parent, page(0), 0, 5).unwrap();
    let child = family.fork(parent);
    family.write(parent, page(0), 0, 6).unwrap();
    family.write(child, page(1), 0, 7).unwrap();
    assert_eq!((word(&mut family, child, 0), word(&mut family, parent, 0)), (5, 6));
    assert_eq!((word(&mut family, child, 1), word(&mut family, parent, 1)), (7, 0));
}

#[test]
fn shared_memory_stays_shared_over_fork_and_exit() {
    let (mut family, parent) = family();
    family.mmap(parent, &Map { shared: true, ..Map::anonymous(page(0), 2 * PAGE, Prot::Rw) }).unwrap();
    let child = family.fork(parent);
    family.write(child, page(1), 0, 9).unwrap();
    family.exit(child);
    assert_eq!(word(&mut family, parent, 1), 9);
    family.madvise(parent, page(0), 2 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!(word(&mut family, parent, 1), 9, "DONTNEED drops mappings of shared pages, not the pages");
}

#[test]
fn dontneed_shows_zeroes_or_the_file_again() {
    let (mut family, id) = family();
    anonymous(&mut family, id, 0, 1);
    family.mmap(id, &file(1, 1, 2, false)).unwrap();
    let original = word(&mut family, id, 1);
    assert_eq!(original, file_word(1, 2, 0));
    for n in 0..2 {
        family.write(id, page(n), 0, 3).unwrap();
    }
    family.madvise(id, page(0), 2 * PAGE, Advice::DontNeed).unwrap();
    assert_eq!((word(&mut family, id, 0), word(&mut family, id, 1)), (0, original));
}

#[test]
fn freed_memory_may_keep_its_contents_until_it_is_written() {
    let (mut family, id) = family();
    anonymous(&mut family, id, 0, 1);
    family.write(id, page(0), 0, 3).unwrap();
    family.write(id, page(0), 1, 4).unwrap();
    family.madvise(id, page(0), PAGE, Advice::Free).unwrap();
    assert!([0, 3].into_iter().all(|word| family.read(id, page(0), 0).unwrap().allows(word)));
    assert!(!family.read(id, page(0), 0).unwrap().allows(4));
    family.write(id, page(0), 0, 8).unwrap();
    assert!(!family.read(id, page(0), 0).unwrap().allows(0));
    assert!(family.read(id, page(0), 1).unwrap().allows(0));
}

/// The kernel drops a page as a whole, once.
#[test]
fn freed_memory_loses_all_words_together_and_for_good() {
    let (mut family, id) = family();
    let freed = |family: &mut Family| {
        anonymous(family, id, 0, 1);
        (0..2).for_each(|probe| family.write(id, page(0), probe, 3 + probe as u64).unwrap());
        family.madvise(id, page(0), PAGE, Advice::Free).unwrap();
    };
    let may = |family: &mut Family, probe, word| family.read(id, page(0), probe).unwrap().allows(word);
    let all = |family: &Family, words| {
        let page = family.space(id).page(AT / PAGE).unwrap();
        page.allows(&words).unwrap_or(words == [0; PROBES])
    };
    freed(&mut family);
    assert!(all(&family, [3, 4, 0, 0]) && all(&family, [0; 4]));
    assert!(!all(&family, [3, 0, 0, 0]) && !all(&family, [0, 4, 0, 0]));
    // What is still there may be dropped later.
    family.saw(id, page(0), 0, 3);
    assert!(may(&mut family, 1, 4) && may(&mut family, 1, 0));
    family.saw(id, page(0), 0, 0);
    assert!(!may(&mut family, 1, 4) && !may(&mut family, 0, 3));
    freed(&mut family);
    family.write(id, page(0), 0, 8).unwrap();
    assert!(all(&family, [8, 4, 0, 0]) && all(&family, [8, 0, 0, 0]) && !all(&family, [3, 4, 0, 0]));
    let mut dropped = family.clone();
    dropped.saw(id, page(0), 1, 0);
    family.saw(id, page(0), 1, 4);
    assert!(!may(&mut family, 1, 0), "a page that was stored to stays");
    assert!(!may(&mut dropped, 1, 4) && dropped.space(id).page(AT / PAGE).unwrap().is_kept());
    // Freed again before anything is known: three ways.
    freed(&mut family);
    family.write(id, page(0), 0, 8).unwrap();
    family.madvise(id, page(0), PAGE, Advice::Free).unwrap();
    assert!([[8, 4, 0, 0], [8, 0, 0, 0], [0; 4]].into_iter().all(|words| all(&family, words)));
    assert!(!all(&family, [0, 4, 0, 0]));
}

#[test]
fn a_private_page_follows_the_file_until_it_is_written() {
    let (mut family, id) = family();
    family.mmap(id, &file(0, 1, 0, false)).unwrap();
    family.mmap(id, &file(1, 1, 0, true)).unwrap();
    word(&mut family, id, 0);
    family.write(id, page(1), 0, 21).unwrap();
    assert_eq!(word(&mut family, id, 0), 21);
    family.write(id, page(0), 1, 1).unwrap();
    family.write(id, page(1), 0, 22).unwrap();
    assert_eq!(word(&mut family, id, 0), 21);
}

#[test]
fn accesses_fail_with_the_signal_that_linux_sends() {
    let (mut family, id) = family();
    family.mmap(id, &file(0, 4, 1, true)).unwrap();
    family.mprotect(id, page(0), PAGE, Prot::None).unwrap();
    family.mprotect(id, page(1), PAGE, Prot::R).unwrap();
    assert_eq!(family.fault(id, page(0), Kind::Read), Err(FaultError::Protection));
    assert_eq!(family.fault(id, page(1), Kind::Write), Err(FaultError::Protection));
    assert_eq!(family.fault(id, page(1), Kind::Exec), Err(FaultError::Protection));
    assert_eq!(family.fault(id, page(2), Kind::Read), Err(FaultError::BeyondEnd));
    assert_eq!(family.fault(id, page(4), Kind::Read), Err(FaultError::NotMapped));
}

#[test]
fn a_stack_grows_to_the_page_touched_and_keeps_its_gap() {
    let (mut family, id) = family();
    family.mmap(id, &Map { grows_down: true, ..Map::anonymous(page(600), PAGE, Prot::Rw) }).unwrap();
    anonymous(&mut family, id, 0, 1);
    family.write(id, page(300), 0, 1).unwrap();
    assert_eq!(family.space(id).vma_at(page(600)).unwrap().start, page(300));
    assert_eq!(family.fault(id, page(256), Kind::Write), Err(FaultError::NotMapped), "255 pages of gap");
    assert_eq!(family.fault(id, page(257), Kind::Write), Ok(()), "256 pages of gap");
    family.mprotect(id, page(0), PAGE, Prot::None).unwrap();
    assert_eq!(family.fault(id, page(1), Kind::Write), Ok(()), "no gap to what cannot be accessed");
    family.munmap(id, page(0), PAGE).unwrap();
    assert!(!family.is_legal(id, page(0), PAGE), "placement keeps the gap free");
}

#[test]
fn the_heap_moves_within_its_bounds() {
    let (mut family, id) = family();
    family.set_brk_start(id, page(0) + 8);
    assert_eq!(family.brk(id, 0), page(0) + 8);
    assert_eq!(family.brk(id, page(3) + 1), page(3) + 1);
    assert_eq!(
        family.space(id).vmas()[0].start,
        page(1),
        "the page of the start belongs to the program's image"
    );
    family.write(id, page(3), 0, 1).unwrap();
    anonymous(&mut family, id, 6, 1);
    assert_eq!(family.brk(id, page(6)), page(3) + 1, "a page must stay free before the next mapping");
    assert_eq!(family.brk(id, page(5)), page(5));
    assert_eq!(family.brk(id, page(3)), page(3));
    assert_eq!(family.fault(id, page(3), Kind::Read), Err(FaultError::NotMapped));
}

#[test]
fn a_heap_does_not_shrink_over_a_hole() {
    let (mut family, id) = family();
    family.set_brk_start(id, page(0));
    assert_eq!(family.brk(id, page(3)), page(3));
    family.munmap(id, page(2), PAGE).unwrap();
    assert_eq!(family.brk(id, page(2)), page(3));
    assert_eq!(family.brk(id, page(1)), page(1), "a page of it is there");
}

#[test]
fn holes_are_reported_after_the_mapped_part_was_done() {
    let (mut family, id) = family();
    anonymous(&mut family, id, 0, 1);
    anonymous(&mut family, id, 2, 1);
    assert_eq!(family.mprotect(id, page(0), 3 * PAGE, Prot::R), Err(MmError::NoMemory));
    assert_eq!(family.mlock(id, page(0), 3 * PAGE, false), Err(MmError::NoMemory));
    assert_eq!(family.madvise(id, page(0), 3 * PAGE, Advice::HugePage), Err(MmError::NoMemory));
    let [first, second] = family.space(id).vmas() else { panic!("two mappings") };
    assert_eq!((first.prot, first.locked, first.huge), (Prot::R, Locked::Now, Huge::Yes));
    assert_eq!((second.prot, second.locked, second.huge), (Prot::Rw, Locked::No, Huge::Yes));
    assert_eq!(family.munmap(id, page(0), 3 * PAGE), Ok(()));
    assert!(family.space(id).vmas().is_empty());
}

#[test]
fn locked_memory_is_not_dropped_and_not_inherited() {
    let (mut family, id) = family();
    anonymous(&mut family, id, 0, 2);
    family.mlock(id, page(0), 1, false).unwrap();
    assert_eq!(family.madvise(id, page(0), PAGE, Advice::DontNeed), Err(MmError::Invalid));
    assert_eq!(family.madvise(id, page(1), PAGE, Advice::DontNeed), Ok(()));
    assert_eq!(family.space(id).locked_bytes(), PAGE);
    let child = family.fork(id);
    assert_eq!(family.space(child).locked_bytes(), 0);
    family.mlockall(child, false, true, false).unwrap();
    anonymous(&mut family, child, 4, 3);
    assert_eq!(family.space(child).locked_bytes(), 3 * PAGE);
    assert_eq!(family.bounds(child).anon_least, 1 + 3, "the page inherited and those brought in");
}

#[test]
fn a_lock_stays_where_it_failed() {
    let (mut family, id) = family();
    anonymous(&mut family, id, 0, 4);
    family.mprotect(id, page(2), PAGE, Prot::None).unwrap();
    assert_eq!(family.mlock(id, page(0), 4 * PAGE, false), Err(MmError::NoMemory), "no access");
    assert_eq!(family.space(id).locked_bytes(), 4 * PAGE, "all is locked");
    assert_eq!(family.bounds(id).anon_least, 2, "and brought in up to there");
    assert_eq!(family.madvise(id, page(3), PAGE, Advice::DontNeed), Err(MmError::Invalid));
}

#[test]
fn a_move_that_leaves_a_mapping_takes_a_wish() {
    let (mut family, id) = family();
    anonymous(&mut family, id, 0, 4);
    let place =
        |family: &Family, hint| family.place_remap(id, page(0), 2 * PAGE, 2 * PAGE, Remap::DontUnmap(hint));
    for bad in [page(9) + 1, page(1), 1 << 47] {
        assert_eq!(place(&family, bad), Err(MmError::Invalid), "{bad:#x}");
    }
    assert_eq!(place(&family, PAGE), Err(MmError::NotPermitted), "below the lowest address");
    assert_eq!(place(&family, page(9)), Ok(Place::At(page(9))));
    assert_eq!(place(&family, page(3)), Ok(Place::Anywhere), "something is there");
    assert_eq!(place(&family, 0), Ok(Place::Anywhere));
}

#[test]
fn a_moved_mapping_takes_its_contents_along() {
    let (mut family, id) = family();
    anonymous(&mut family, id, 0, 4);
    family.write(id, page(1), 0, 11).unwrap();
    family.mremap(id, page(0), 2 * PAGE, 3 * PAGE, Remap::Fixed(page(10))).unwrap();
    assert_eq!((word(&mut family, id, 11), word(&mut family, id, 12)), (11, 0));
    assert_eq!(family.fault(id, page(1), Kind::Read), Err(FaultError::NotMapped));
    family.mremap(id, page(10), 3 * PAGE, 3 * PAGE, Remap::FixedDontUnmap(page(20))).unwrap();
    assert_eq!((word(&mut family, id, 21), word(&mut family, id, 11)), (11, 0));
    assert_eq!(
        family.mremap(id, page(2), 2 * PAGE, 99 * PAGE, Remap::InPlace),
        Err(MmError::NoMemory),
        "something is mapped above"
    );
}

#[test]
fn placement_has_linux_errors() {
    let (mut family, id) = family();
    anonymous(&mut family, id, 0, 1);
    let map = |len, placement| Map { placement, ..Map::anonymous(page(0), len, Prot::Rw) };
    assert_eq!(family.mmap(id, &map(0, Placement::Fixed)), Err(MmError::Invalid));
    assert_eq!(family.mmap(id, &map(u64::MAX, Placement::Hint)), Err(MmError::NoMemory));
    assert_eq!(family.mmap(id, &map(PAGE, Placement::FixedNoReplace)), Err(MmError::Exists));
    assert_eq!(family.place(id, &map(PAGE, Placement::Hint)), Ok(Place::Anywhere));
    let odd = Map { addr: page(0) + 1, ..map(PAGE, Placement::Fixed) };
    assert_eq!(family.mmap(id, &odd), Err(MmError::Invalid));
    let far = Map { file: Some((1, u64::MAX / PAGE)), ..map(PAGE, Placement::Hint) };
    assert_eq!(family.mmap(id, &far), Err(MmError::Overflow));
}
