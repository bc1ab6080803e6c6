use super::*;

#[test]
fn counts_behind_a_name_with_brackets() {
    let stat = "17 (a) b (c)) S 1 2 3 4 5 6 70 8 9 1 0 0";
    assert_eq!(parse_stat(stat), Some(FaultCounts { minor: 70, major: 9, children: 9 }));
    assert_eq!(parse_stat("17 (a"), None);
}

/// Found by the fuzzer.
#[test]
fn counts_that_no_sum_holds_are_none() {
    assert_eq!(parse_stat("17 (a) S 1 2 3 4 5 6 0 1 0 18446744073709551615"), None);
}

#[test]
fn this_process_has_faulted() {
    let counts = fault_counts(Pid::this()).expect("it exists");
    assert!(counts.minor > 0);
}
