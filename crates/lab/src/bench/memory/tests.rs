use super::{Memory, neighbours};

#[test]
fn shuffled_touches_reach_every_folio_once_and_in_no_order() {
    let shuffled = Memory::of_every_folio_and_shuffled(8 << 20).find(|memory| memory.shuffled).unwrap();
    let touches = shuffled.touches();
    let mut sorted = touches.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..2048).collect::<Vec<u32>>());
    assert!(neighbours(touches.into_iter().map(u64::from)) < 20);
    assert_eq!(
        (shuffled.pages(), shuffled.folio_pages(), shuffled.name().as_str()),
        (2048, 1, "4KiB/shuffled")
    );
}

#[test]
fn frames_that_follow_each_other_are_neighbours() {
    assert_eq!(neighbours([].into_iter()), 0);
    assert_eq!(neighbours([7, 8, 9, 3, 4, 4, 2].into_iter()), 3);
}
