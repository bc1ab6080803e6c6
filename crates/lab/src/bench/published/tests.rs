use super::figures;

#[test]
fn the_bundled_figures_can_be_read() {
    let zap = figures("zap").unwrap();
    assert_eq!(zap.len(), 18, "nine folio sizes, before and after");
    let first = &zap[0];
    assert_eq!(
        (first.variant.as_str(), first.number(), first.unit.as_str()),
        ("before", Some(0.058_110), "s")
    );
    assert!(zap.iter().all(|figure| figure.case.starts_with("munmap 1GiB folio ")));
    assert!(!figures("hvo").unwrap().is_empty());
    assert!(
        figures("hgm").unwrap().iter().any(|figure| figure.value == "about 1" && figure.number().is_none())
    );
    assert!(figures("no such system").unwrap().is_empty());
}
