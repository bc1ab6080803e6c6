use quire::addr::Frame;

use super::{Between, longest, longest_again};

/// A pass: the first frame of each stretch, or none, and its length.
fn pass(stretches: &[(Option<u64>, f64)]) -> Vec<Between> {
    stretches.iter().map(|&(frame, length)| Between { cleared: frame.map(Frame), length }).collect()
}

#[test]
fn what_disturbs_one_pass_does_not_count_and_what_comes_again_does() {
    let passes = [
        pass(&[(None, 1.0), (Some(0), 20.0), (Some(512), 900.0), (None, 2.0)]),
        pass(&[(None, 800.0), (Some(0), 21.0), (Some(512), 22.0), (None, 2.0)]),
        pass(&[(None, 1.0), (Some(0), 700.0), (Some(512), 23.0), (None, 2.0)]),
    ];
    assert_eq!(longest_again(&passes), Some(23.0));
    assert_eq!(longest(&passes[0]), Some(900.0));
}

#[test]
fn a_stretch_that_is_long_in_two_passes_of_three_counts_wherever_it_is() {
    let long = |at: usize| {
        let one = |pass_at: usize| {
            let length = |place: usize| if place == at && pass_at != 1 { 500.0 } else { 20.0 };
            pass(&[(Some(0), length(0)), (Some(512), length(1)), (None, length(2))])
        };
        longest_again(&[one(0), one(1), one(2)])
    };
    assert_eq!([long(0), long(1), long(2)], [Some(500.0); 3]);
}

#[test]
fn memory_that_only_one_pass_cleared_counts_as_it_was() {
    let passes = [pass(&[(Some(0), 5.0)]), pass(&[(Some(0), 5.0), (Some(512), 300.0)]), pass(&[])];
    assert_eq!(longest_again(&passes), Some(300.0));
    assert_eq!(longest_again(&[]), None);
}
