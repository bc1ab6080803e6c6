use super::*;

#[test]
fn lists_of_cpus() {
    assert_eq!(parse_cpus("0"), Some(vec![0]));
    assert_eq!(parse_cpus("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
    assert_eq!(parse_cpus(""), None);
    assert_eq!(parse_cpus("0-"), None);
    assert_eq!(parse_cpus("0-2147483647"), None);
}
