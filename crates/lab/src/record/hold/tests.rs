use super::*;

const A: Pid = Pid::from_raw(1);
const B: Pid = Pid::from_raw(2);
const C: Pid = Pid::from_raw(3);

/// Three threads of one memory.
fn three() -> Turns {
    let mut turns = Turns::default();
    turns.own(A);
    assert!(!turns.made(A, B, true) && !turns.made(A, C, true));
    turns
}

#[test]
fn threads_of_one_memory_take_turns() {
    let mut turns = three();
    assert!(turns.enters(A));
    assert!(!turns.enters(B) && !turns.enters(C) && turns.holds_any());
    assert_eq!((turns.left(A), turns.left(B), turns.left(C)), (Some(B), Some(C), None));
    assert!(turns.enters(B) && !turns.holds_any());
}

#[test]
fn another_memory_does_not_wait() {
    let mut turns = three();
    let other = Pid::from_raw(9);
    assert!(!turns.made(A, other, false));
    assert!(turns.enters(A) && turns.enters(other));
    // A started program has its own memory.
    turns.own(B);
    assert!(turns.enters(B));
}

#[test]
fn a_call_that_waits_for_one_that_waits_here_is_passed() {
    let mut turns = three();
    assert!(turns.enters(A) && !turns.enters(B) && !turns.enters(C));
    assert_eq!(turns.overdue(), []);
    std::thread::sleep(PATIENCE + Duration::from_millis(1));
    assert_eq!(turns.overdue(), [B]);
    assert_eq!(turns.left(A), None, "the turn is not its own any more");
    assert_eq!(turns.left(B), Some(C));
}

#[test]
fn threads_that_end_hold_nothing_up() {
    let mut turns = three();
    assert!(turns.enters(A) && !turns.enters(B) && !turns.enters(C));
    assert_eq!(turns.ended(B), None);
    assert_eq!(turns.ended(A), Some(C));
    assert_eq!(turns.ended(C), None);
    assert!(!turns.holds_any());
}

#[test]
fn a_thread_that_comes_before_it_is_told_of_waits_for_that() {
    let mut turns = three();
    let early = Pid::from_raw(9);
    assert!(!turns.enters(early) && turns.holds_any());
    assert!(turns.made(A, early, true), "it waits");
    assert!(turns.enters(early) && !turns.enters(A));
}
