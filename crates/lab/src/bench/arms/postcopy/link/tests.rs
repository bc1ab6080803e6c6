use super::*;

/// A piece occupies the wire for 1000 ns; a request takes 100 ns each way.
const WIRE: Wire = Wire { bits_per_second: 8_000_000_000, round_trip: 200 };

fn drain(link: &mut Link, now: u64) -> Vec<usize> {
    std::iter::from_fn(|| link.arrived(now, &mut |_| ())).collect()
}

#[test]
fn a_stream_keeps_the_wire_busy_however_seldom_it_is_asked() {
    let mut link = Link::new(WIRE, 1000, 4);
    assert!(drain(&mut link, 1099).is_empty());
    assert_eq!(drain(&mut link, 1100), [0]);
    assert_eq!(drain(&mut link, 3099), [1]);
    assert_eq!(drain(&mut link, 10_000), [2, 3]);
    assert_eq!(link.busy(), 4000);
}

#[test]
fn what_was_asked_for_goes_before_the_stream_and_after_what_is_being_sent() {
    let mut link = Link::new(WIRE, 1000, 8);
    let mut began = Vec::new();
    let sending = &mut |piece| began.push(piece);
    // The request reaches the source at 600, while it sends piece 0. The piece arrives at 1000 + 1000 + 100.
    assert!(link.ask(500, 5, sending));
    assert!(link.ask(550, 6, sending));
    assert_eq!(link.arrived(2099, sending), Some(0));
    assert_eq!(link.arrived(2099, sending), None);
    assert_eq!(link.arrived(2100, sending), Some(5));
    assert_eq!(link.arrived(3100, sending), Some(6));
    assert!(!link.ask(3200, 1, sending), "it is on its way");
    while link.arrived(20_000, sending).is_some() {}
    assert_eq!(began, [0, 5, 6, 1, 2, 3, 4, 7], "each once");
    assert_eq!(WIRE.latency(1000), 1200);
}
