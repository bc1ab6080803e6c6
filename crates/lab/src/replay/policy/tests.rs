use super::*;

#[test]
fn every_size_is_parsed_and_named() {
    for size in FolioSize::all() {
        assert_eq!(parse_folio(size.name()), Ok(FolioChoice::One(size)));
        assert_eq!(parse_folio(&size.name().to_lowercase()), Ok(FolioChoice::One(size)));
        assert_eq!(order_name(size.order().get()), size.name());
    }
    assert_eq!(parse_folio("sweep"), Ok(FolioChoice::Sweep));
    assert!(parse_folio("8K").unwrap_err().contains("16K"));
}

#[test]
fn memory_is_given_in_units() {
    assert_eq!(parse_memory("64M"), Ok(64 << 20));
    assert_eq!(parse_memory("1g"), Ok(1 << 30));
    assert_eq!(parse_memory("16777217"), Ok((16 << 20) + (2 << 20)));
    for wrong in ["", "M", "12Q", "4K", "65T", "99999999999T"] {
        assert!(parse_memory(wrong).is_err(), "{wrong}");
    }
    assert_eq!(
        (exact_bytes(256 << 20), exact_bytes(3 << 30), exact_bytes(5)),
        ("256M".into(), "3G".into(), "5".into())
    );
}
