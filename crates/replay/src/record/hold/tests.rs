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

/// What the test lets a thread do: nothing, for the kernel shows nothing.
fn unseen(_: Pid) -> Option<Sample> {
    None
}

fn seen(state: State, ran: Duration, slices: u64) -> impl Fn(Pid) -> Option<Sample> {
    move |_| Some(Sample { state, ran_ns: ran.as_nanos() as u64, slices })
}

/// A is inside a call, and B and C wait. Also the time at which that began, or a little later.
fn one_inside() -> (Turns, Instant) {
    let mut turns = three();
    assert!(turns.enters(A) && !turns.enters(B) && !turns.enters(C));
    (turns, Instant::now())
}

#[test]
fn a_call_that_waits_for_one_that_waits_here_is_passed() {
    for look in [seen(State::Sleeps, DOZE, 3), seen(State::Sleeps, Duration::ZERO, 0)] {
        let (mut turns, start) = one_inside();
        assert_eq!(turns.overdue(start, &look), []);
        assert_eq!(turns.overdue(start + PATIENCE - DOZE, &look), []);
        assert_eq!(turns.overdue(start + PATIENCE, &look), [B]);
        assert_eq!(turns.left(A), None, "the turn is not its own any more");
        assert_eq!(turns.left(B), Some(C));
    }
}

#[test]
fn a_call_of_a_thread_that_the_kernel_does_not_show_is_passed() {
    let (mut turns, start) = one_inside();
    assert_eq!(turns.overdue(start + PATIENCE - DOZE, unseen), []);
    assert_eq!(turns.overdue(start + PATIENCE, unseen), [B]);
}

/// Looks a hundred times at a call that takes a hundred times as long as it may.
fn keeps_its_turn(seen: impl Fn(u64) -> Sample) {
    let (mut turns, start) = one_inside();
    for waited in 1..100 {
        assert_eq!(turns.overdue(start + PATIENCE * waited as u32, |_| Some(seen(waited))), []);
    }
    assert_eq!(turns.left(A), Some(B));
}

#[test]
fn a_call_that_gets_no_processor_keeps_its_turn() {
    keeps_its_turn(|waited| Sample { state: State::Ready, ran_ns: waited * 1000, slices: waited });
}

#[test]
fn a_call_that_sleeps_for_moments_keeps_its_turn() {
    keeps_its_turn(|waited| Sample { state: State::Sleeps, ran_ns: waited * 1000, slices: waited });
}

#[test]
fn a_call_that_has_ended_unheard_keeps_its_turn() {
    keeps_its_turn(|_| Sample { state: State::Stopped, ran_ns: PATIENCE.as_nanos() as u64, slices: 9 });
}

#[test]
fn a_call_that_runs_for_long_is_passed() {
    let (mut turns, start) = one_inside();
    let ran = Duration::from_secs(7);
    assert_eq!(turns.overdue(start + PATIENCE, seen(State::Ready, ran, 1)), []);
    assert_eq!(turns.overdue(start + PATIENCE * 2, seen(State::Ready, ran + PATIENCE, 2)), [B]);
    // The next one has a time of its own.
    let now = Instant::now();
    assert_eq!(turns.overdue(now + PATIENCE, seen(State::Ready, ran + PATIENCE, 2)), []);
    assert_eq!(turns.overdue(now + PATIENCE * 2, seen(State::Ready, ran + PATIENCE * 2, 3)), [C]);
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
