use std::collections::BTreeSet;

use quire::addr::{Order, VirtAddr};
use quire::arch::Protection;
use quire::vm::Placement;

use super::*;

const BASE: u64 = 0x1000_0000;

fn mapping(addr: u64, pages: u64, prot: Protection) -> Mapping {
    Mapping {
        addr,
        len: pages * PAGE,
        prot,
        placement: Placement::Fixed,
        shared: false,
        file: None,
        grows_down: false,
        thread_stack: false,
        populate: false,
        locked: false,
        noreserve: false,
    }
}

/// Parts, and one address space.
#[derive(Default)]
struct Fixture {
    parts: Parts,
    map: PartMap,
}

impl Fixture {
    fn maps(&mut self, page: u64, pages: u64) {
        self.does(Verb::Mmap(mapping(BASE + page * PAGE, pages, Protection::from_bits(3))));
    }

    fn does(&mut self, verb: Verb) {
        self.parts.apply(&mut self.map, &verb);
    }

    /// The kinds of the first `pages` pages.
    fn kinds(&self, pages: u64) -> Vec<Option<PartKind>> {
        let kind = |page| self.map.find(BASE / PAGE + page).map(|part| self.parts.all[part.0].key.kind);
        (0..pages).map(kind).collect()
    }
}

const A: Option<PartKind> = Some(PartKind::Anonymous(1));
const B: Option<PartKind> = Some(PartKind::Anonymous(2));

#[test]
fn parts_of_many_pages_are_those_of_each() {
    let mut fixture = Fixture::default();
    [(2, 2), (4, 1), (9, 3), (14, 1)].into_iter().for_each(|(page, pages)| fixture.maps(page, pages));
    let pages = || (0..20).map(|page| BASE / PAGE + page);
    let mut lookup = fixture.map.lookup();
    let mut found = BTreeSet::new();
    for page in pages().chain(pages().rev()).chain([0, 11, 3, 9, 13, 14]) {
        assert_eq!(lookup.find(page), fixture.map.find(page), "{page}");
        found.insert(lookup.find(page).map(|part| part.0));
    }
    assert_eq!(found.len(), 4, "three parts and none");
}

#[test]
fn writable_mappings_that_touch_are_one() {
    let mut fixture = Fixture::default();
    fixture.maps(2, 2);
    fixture.maps(4, 1);
    fixture.maps(1, 1);
    fixture.maps(6, 1);
    assert_eq!(fixture.kinds(8), [None, A, A, A, A, None, B, None]);
    assert_eq!(fixture.parts.all[0].bytes, 4 * PAGE, "the most in one piece");
    let reserved = mapping(BASE + 7 * PAGE, 2, Protection::NONE);
    fixture.does(Verb::Mmap(reserved));
    assert_eq!(fixture.kinds(8)[7], Some(PartKind::Anonymous(3)), "a reservation is apart");
    fixture.maps(8, 1);
    assert_eq!(fixture.kinds(9)[8], Some(PartKind::Anonymous(3)), "what is mapped in it is not");
}

#[test]
fn anonymous_memory_behind_a_file_is_its_data() {
    let mut fixture = Fixture::default();
    let file = Mapping { file: Some((7, 0)), ..mapping(BASE, 2, Protection::READ) };
    fixture.does(Verb::Mmap(file));
    fixture.maps(2, 1);
    let data = Some(PartKind::File(7));
    assert_eq!(fixture.kinds(3), [data, data, data]);
}

#[test]
fn ranges_are_unmapped_and_moved() {
    let mut fixture = Fixture::default();
    fixture.maps(0, 4);
    fixture.does(Verb::Munmap { addr: BASE + PAGE, len: PAGE });
    assert_eq!(fixture.kinds(4), [A, None, A, A]);
    let to = Remap::Fixed(VirtAddr(BASE + 8 * PAGE));
    fixture.does(Verb::Mremap { addr: BASE + 2 * PAGE, old: 2 * PAGE, new: 3 * PAGE, to });
    assert_eq!(fixture.kinds(12), [A, None, None, None, None, None, None, None, A, A, A, None]);
    fixture.does(Verb::Mremap { addr: BASE + 8 * PAGE, old: 3 * PAGE, new: PAGE, to: Remap::InPlace });
    assert_eq!(fixture.kinds(12)[8..], [A, None, None, None]);
    let to = Remap::FixedDontUnmap(VirtAddr(BASE + 4 * PAGE));
    fixture.does(Verb::Mremap { addr: BASE + 8 * PAGE, old: PAGE, new: PAGE, to });
    assert_eq!(fixture.kinds(9)[4..], [A, None, None, None, A]);
}

#[test]
fn the_heap_grows_and_shrinks_and_faults_are_counted() {
    let mut fixture = Fixture::default();
    fixture.does(Verb::Brk { from: BASE, to: BASE + 3 * PAGE });
    fixture.does(Verb::Brk { from: BASE + 3 * PAGE, to: BASE + PAGE });
    let heap = Some(PartKind::Heap);
    assert_eq!(fixture.kinds(3), [heap, None, None]);
    let outcome = FaultOutcome { order: Order::FRAME, kind: FaultKind::Anon };
    let page = BASE / PAGE;
    fixture.parts.fault(&mut fixture.map, page, &outcome);
    fixture.parts.fault(&mut fixture.map, page + 1, &outcome);
    let parts = fixture.parts.end();
    let counted: Vec<_> = parts.iter().map(|part| (part.key.kind, part.folios[0], part.faults())).collect();
    assert_eq!(counted, [(PartKind::Heap, 1, 1), (PartKind::Unknown, 1, 1)]);
}

#[test]
fn a_stack_grows_to_its_faults() {
    let mut fixture = Fixture::default();
    let stack = mapping(BASE + 4 * PAGE, 1, Protection::from_bits(3));
    fixture.does(Verb::Mmap(Mapping { grows_down: true, ..stack }));
    let outcome = FaultOutcome { order: Order::FRAME, kind: FaultKind::Anon };
    fixture.parts.fault(&mut fixture.map, BASE / PAGE + 2, &outcome);
    assert_eq!(
        fixture.kinds(5),
        [None, None, Some(PartKind::Stack), Some(PartKind::Stack), Some(PartKind::Stack)]
    );
}

#[test]
fn memory_at_the_peak_belongs_to_its_part() {
    let mut fixture = Fixture::default();
    fixture.maps(0, 4);
    let part = fixture.map.find(BASE / PAGE);
    for _ in 0..2 {
        fixture.parts.peak([(part, true), (part, false), (part, false)].into_iter(), &MappedParts::default());
    }
    let part = &fixture.parts.end()[0];
    assert_eq!((part.resident, part.wasted), (3 * PAGE, 2 * PAGE));
}
