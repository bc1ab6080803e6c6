use super::*;

#[test]
fn rings_are_powers_of_two() {
    assert_eq!(parse_ring("64M"), Ok(64 << 20));
    assert_eq!(parse_ring("4096"), Ok(4096));
    assert_eq!(parse_ring("512k"), Ok(512 << 10));
    for wrong in ["", "3M", "2K", "1T", "M", "-1", "99999999999999999999G", "1é"] {
        assert!(parse_ring(wrong).is_err(), "{wrong}");
    }
}
