use super::{Spread, Summary, mean_and_deviation};

#[test]
fn nothing_has_no_summary() {
    assert_eq!(Summary::of(&[]), None);
}

#[test]
fn one_sample_is_its_own_median() {
    assert_eq!(Summary::of(&[7.0]), Some(Summary { median: 7.0, min: 7.0, max: 7.0 }));
}

#[test]
fn an_odd_count_takes_the_middle_in_any_order() {
    assert_eq!(Summary::of(&[9.0, 1.0, 5.0]), Some(Summary { median: 5.0, min: 1.0, max: 9.0 }));
}

#[test]
fn an_even_count_takes_the_mean_of_the_middle_two() {
    assert_eq!(Summary::of(&[4.0, 1.0, 100.0, 2.0]), Some(Summary { median: 3.0, min: 1.0, max: 100.0 }));
}

#[test]
fn an_outlier_moves_the_range_and_not_the_median() {
    let calm = Summary::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let storm = Summary::of(&[1.0, 2.0, 3.0, 4.0, 5000.0]).unwrap();
    assert_eq!(calm.median, storm.median);
    assert_eq!(storm.max, 5000.0);
}

/// A pause is as long as its longest, however rare it is.
#[test]
fn the_worst_sample_is_the_figure_of_a_pause() {
    let samples = [0.0, 5000.0, 3.0];
    let figures = |metric| {
        (Summary::of(&samples).unwrap().figure(metric), Spread::of(&samples).unwrap().figure(metric))
    };
    assert_eq!(figures("worst-stall"), (5000.0, 5000.0));
    assert_eq!(figures("stall"), (3.0, 3.0));
}

#[test]
fn quarters_are_interpolated_and_kept_as_a_list() {
    let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
    assert_eq!(spread, Spread { count: 4, min: 1.0, lower: 1.75, median: 2.5, upper: 3.25, max: 4.0 });
    let text = serde_json::to_string(&Spread::of(&[1234.567]).unwrap().rounded()).unwrap();
    assert_eq!(text, "[1.0,1235.0,1235.0,1235.0,1235.0,1235.0]");
    assert_eq!(serde_json::from_str::<Spread>(&text).unwrap().median, 1235.0);
    assert_eq!(Spread::of(&[]), None);
}

#[test]
fn the_deviation_is_that_of_single_samples() {
    assert_eq!(mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0, 5.0]), Some((5.0, 2.0)));
    assert_eq!(mean_and_deviation(&[3.0]), None);
}
