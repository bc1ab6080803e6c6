use quire::addr::Frame;

use super::*;

fn frames(start: u64, count: u64) -> FrameRange {
    FrameRange::new(Frame(start), count)
}

#[test]
fn every_leaf_is_found_from_each_of_its_frames_and_from_no_other() {
    let reach = Reach::new(1 << 20);
    for (level, count) in [(1, 1), (2, 512), (3, 1 << 18)] {
        let first = 1 << 19;
        reach.add(level, first);
        for inside in [first, first + count / 2, first + count - 1] {
            assert!(reach.may_reach(frames(inside, 1)), "level {level}, frame {inside:#x}");
        }
        assert!(!reach.may_reach(frames(first - 1, 1)) && !reach.may_reach(frames(first + count, 1)));
        assert!(reach.may_reach(frames(first - 1, 2)) && !reach.may_reach(frames(first, 0)));
        assert!(reach.may_reach(frames(0, 1 << 20)));
        reach.remove(level, first);
        assert!(!reach.may_reach(frames(0, 1 << 20)));
    }
}

#[test]
fn frames_behind_the_last_slot_share_counts_and_are_never_missed() {
    let reach = Reach::new(1 << 34);
    let far = (1 << 34) - 1;
    reach.add(1, far);
    assert!(reach.may_reach(frames(far, 1)));
    assert!(reach.may_reach(frames(far % MAX_SLOTS, 1)), "a shared count asks for a search");
    assert!(!reach.may_reach(frames(far - 1, 1)));
    reach.remove(1, far);
    reach.add(1, 3);
    assert!(reach.may_reach(frames(MAX_SLOTS - 1, 5)), "runs go on at the first slot");
    assert!(!reach.may_reach(frames(MAX_SLOTS - 1, 4)));
}

#[test]
fn a_machine_without_a_model_counts_nothing() {
    let reach = Reach::new(0);
    reach.add(1, 5);
    assert!(!reach.may_reach(frames(5, 1)));
    reach.remove(1, 5);
}
