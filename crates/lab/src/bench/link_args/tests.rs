use super::{latency, rate};

#[test]
fn rates_have_units() {
    let read = ["1.25GB", "1GiB", "117MB/s", "500 MiB", "1000"].map(|text| rate(text).unwrap());
    assert_eq!(read, [1_250_000_000, 1 << 30, 117_000_000, 500 << 20, 1000]);
    for text in ["", "0", "fast", "-1GB", "1GB/h", "16EB"] {
        assert!(rate(text).is_err(), "{text}");
    }
}

#[test]
fn latencies_have_units() {
    assert_eq!(
        ["20us", "1ms", "1s", "0s"].map(|text| latency(text).unwrap()),
        [20_000, 1_000_000, 1_000_000_000, 0]
    );
    for text in ["", "20", "soon", "1h", "-1ms"] {
        assert!(latency(text).is_err(), "{text}");
    }
}
