use super::sparkline;

#[test]
fn bars_are_as_high_as_their_values() {
    assert_eq!(sparkline([0.0, 1.0, 12.5, 13.0, 50.0, 99.0, 100.0, 200.0], 100.0), "·▁▁▂▄███");
    assert_eq!(sparkline([0.0, 0.0], 0.0), "··");
    assert_eq!(sparkline([], 1.0), "");
}
