use std::time::Duration;

use super::{Moment, hertz, now, reading_cost, to_nanoseconds};

/// C5: the instruction exists and works.
#[test]
fn the_counter_goes_forward_at_the_measured_rate() {
    let start = Moment::now();
    std::thread::sleep(Duration::from_millis(5));
    let span = start.until(Moment::now());
    assert!(span.nanoseconds >= 5e6);
    // A process that was preempted between two readings makes the comparison worse, not the counter.
    let by_counter = to_nanoseconds(span.cycles);
    assert!((by_counter / span.nanoseconds - 1.0).abs() < 0.2, "{by_counter} against {}", span.nanoseconds);
    assert!(hertz() > 1e8 && hertz() < 1e11, "{}", hertz());
}

#[test]
fn of_two_moments_one_is_earlier() {
    let (first, second) = (Moment::now(), Moment::now());
    assert_eq!((first.earlier(second), second.earlier(first)), (first, first));
    assert_eq!((first.later(second), second.later(first)), (second, second));
    assert!(reading_cost() < 100_000);
    assert!(now() >= second.counter);
}
