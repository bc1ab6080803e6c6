use super::Summary;

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
