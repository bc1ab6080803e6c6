use quire::vm::policy::{FolioOverride, HugeAdvice, OrderSet};

use super::*;

#[test]
fn every_size_is_parsed_and_named() {
    for (size, (name, order)) in FolioSet::each().zip(SIZES) {
        assert_eq!(parse_folio(name), Ok(FolioChoice::One(size)));
        assert_eq!(parse_folio(&name.to_lowercase()), Ok(FolioChoice::One(size)));
        assert_eq!((order_name(order), size.name()), (name.to_owned(), name.to_owned()));
        let only = FolioPolicy::only(Order::new(order).expect("an order"));
        assert_eq!(size.policy(), only.with_pmd_mapped(true));
    }
    assert_eq!(parse_folio("sweep"), Ok(FolioChoice::Sweep));
    assert!(parse_folio("8K").unwrap_err().contains("16K"));
}

#[test]
fn sets_of_sizes_are_parsed_and_named() {
    let set = parse_set("2m,64K").expect("a set");
    assert_eq!((set.name().as_str(), set.largest().get()), ("64K+2M", 9));
    assert_eq!(parse_set("4k+64k+2M"), Ok(set));
    assert_eq!(parse_set("4K"), Ok(FolioSet::FRAMES));
    assert_eq!((parse_set("All"), FolioSet::all().name().as_str()), (Ok(FolioSet::all()), "all"));
    assert_eq!(FolioSet::all().orders().collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7, 8, 9]);
    let asked = FolioSet::FRAMES.and(4).on_request(set);
    assert_eq!((asked.name().as_str(), asked.largest().get()), ("64K, 2M by madvise", 9));
    assert_eq!((asked.kib().collect(), asked.given_kib().collect()), (vec![64], vec![64, 2048]));
    let allowed = |advice| asked.policy().allowed(advice, FolioOverride::INHERIT);
    assert_eq!(allowed(HugeAdvice::None), OrderSet::of(&[0, 4]));
    assert_eq!(allowed(HugeAdvice::Huge), OrderSet::of(&[0, 4, 9]));
    for wrong in ["", ",", "64K,", "64K,8K", "64K 2M"] {
        assert!(parse_set(wrong).is_err(), "{wrong}");
    }
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
