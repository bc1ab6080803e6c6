use super::NodeSet;
use crate::limits::MAX_NODES;
use std::vec::Vec;

#[test]
fn holds_what_was_put_in() {
    let set = NodeSet::of(&[3, 0, 15]);
    assert!(set.iter().eq([0, 3, 15]));
    assert_eq!((set.len(), set.is_empty(), NodeSet::EMPTY.is_empty()), (3, false, true));
    assert_eq!(set, [15, 3, 0, 3].into_iter().collect());
    assert_eq!(NodeSet::ALL.len(), MAX_NODES);
    assert_eq!(set.intersection(NodeSet::first(4)), NodeSet::of(&[0, 3]));
}

#[test]
fn goes_round() {
    let set = NodeSet::of(&[1, 4, 15]);
    let turns: Vec<u8> = (0..5)
        .scan(4, |at, _| {
            *at = set.next_after(*at).unwrap();
            Some(*at)
        })
        .collect();
    assert_eq!(turns, [15, 1, 4, 15, 1]);
    assert_eq!(NodeSet::one(7).next_after(7), Some(7));
    assert_eq!(NodeSet::EMPTY.next_after(0), None);
}

#[test]
fn places_become_nodes() {
    let allowed = NodeSet::of(&[2, 3, 7]);
    let onto = |places: &[u8]| NodeSet::of(places).relative_to(allowed);
    assert_eq!(onto(&[0, 2]), NodeSet::of(&[2, 7]));
    assert_eq!(onto(&[1, 4, 13]), NodeSet::one(3), "they go round");
    assert_eq!(onto(&[]), NodeSet::EMPTY);
    assert_eq!(NodeSet::one(0).relative_to(NodeSet::EMPTY), NodeSet::EMPTY);
}

#[test]
fn remembers_a_node_that_cannot_be() {
    for node in [MAX_NODES as u8, 200, 255] {
        let set = NodeSet::of(&[1, node]);
        assert!(!set.is_within(NodeSet::ALL) && !set.contains(node) && set.contains(1));
    }
    assert!(!NodeSet::first(MAX_NODES + 1).is_within(NodeSet::ALL));
}
