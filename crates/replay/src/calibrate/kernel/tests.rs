use super::*;

#[test]
fn prices_are_kept_and_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("quire/kernel-prices.json");
    let faults = [(4, 500.0), (64, 1500.5), (2048, 60_000.0)].into();
    let spread = [(4, FaultSpread { median_ns: 450.0, p99_ns: 900.5, longest_ns: 30_000.0 })].into();
    let prices = KernelPrices::of_this_machine(faults, spread, Some(25.5))
        .with_recorder([("anon".to_owned(), 600.0), ("file-minor".to_owned(), 1500.0)].into());
    prices.keep(&place).expect("they are kept");
    let (file, found) = kernel_prices(Some(&place)).expect("it is read").expect("it is usable");
    assert_eq!((&file, &found), (&place, &prices));
    assert_eq!(KernelPrices::by_order(&found.fault_ns), [(0, 500.0), (4, 1500.5), (9, 60_000.0)].into());
    assert_eq!(
        ["anon", "file-minor", "cow-copy"].map(|kind| found.of_recorder(kind)),
        [600.0, 1500.0, 600.0]
    );
    let read = KernelPrices::load(&place).expect("it is read");
    read.check_machine().expect("it is this machine");
    for other in
        [KernelPrices { kernel: "1.0".into(), ..read.clone() }, KernelPrices { cpu: "8086".into(), ..read }]
    {
        let why = other.check_machine().expect_err("another machine").to_string();
        assert!(why.contains(&other.kernel) && why.contains(&other.cpu), "{why}");
    }
}

#[test]
fn blocks_that_the_host_has_not_taken_have_a_price_of_their_own() {
    let spread = FaultSpread { median_ns: 1.0, p99_ns: 1.0, longest_ns: 1.0 };
    let spreads = [(4, spread), (2048, spread)].into();
    let prices = KernelPrices::of_this_machine([(4, 500.0), (2048, 2.7e6)].into(), spreads, None);
    assert_eq!(prices.clone().of_memory_in_use(), prices, "they were not told apart");
    let prices = prices.with_blocks_in_use(Some(2e5));
    assert_eq!(KernelPrices::parse(&prices.bytes().unwrap()).unwrap(), prices);
    let in_use = prices.of_memory_in_use();
    assert_eq!(in_use.fault_ns, [(4, 500.0), (2048, 2e5)].into());
    assert_eq!(in_use.fault_spread.into_keys().collect::<Vec<_>>(), [4]);
}

#[test]
fn one_fault_in_a_hundred_is_longer_than_99_percent() {
    let of = |faults: u32| FaultSpread::of((1..=faults).rev().map(f64::from).collect());
    assert_eq!(of(1), FaultSpread { median_ns: 1.0, p99_ns: 1.0, longest_ns: 1.0 });
    assert_eq!(of(101), FaultSpread { median_ns: 51.0, p99_ns: 100.0, longest_ns: 101.0 });
    assert_eq!(of(1001), FaultSpread { median_ns: 501.0, p99_ns: 991.0, longest_ns: 1001.0 });
}

#[test]
fn what_is_no_price_is_refused() {
    let of = |fault_ns: &str| format!(r#"{{"version":1,"kernel":"","cpu":"","fault_ns":{fault_ns}}}"#);
    let old = KernelPrices::parse(of(r#"{"4":1.0}"#).as_bytes()).expect("the form is right");
    assert_eq!(old.walk_ns, None, "it was written before walks were measured");
    assert_eq!(old.of_recorder("anon"), 0.0, "nor was the recorder");
    let version = of(r#"{"4":1.0}"#).replace("\"version\":1", "\"version\":2");
    let wrong = [
        r#"{}"#,
        r#"{"64":1.0}"#,
        r#"{"4":0.0}"#,
        r#"{"4":-1.0}"#,
        r#"{"4":1.0,"5":1.0}"#,
        r#"{"4":1.0,"4096":1.0}"#,
        r#"{"4":1.0},"recycled_ns":{"4":0.0}"#,
        r#"{"4":1.0},"walk_ns":-1.0"#,
        r#"{"4":1.0},"blocks_in_use_ns":0.0"#,
        r#"{"4":1.0},"recorder_ns":{"of no kind":1.0}"#,
        r#"{"4":1.0},"fault_spread":{"4":{"median_ns":2.0,"p99_ns":1.0,"longest_ns":3.0}}"#,
        r#"{"4":1.0},"fault_spread":{"4":{"median_ns":-1.0,"p99_ns":1.0,"longest_ns":3.0}}"#,
    ];
    for text in wrong.into_iter().map(of).chain([version, String::new()]) {
        assert!(KernelPrices::parse(text.as_bytes()).is_err(), "{text}");
    }
}
