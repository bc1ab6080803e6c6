use std::path::Path;

use super::*;
use crate::replay::parse_set;

fn pool_of(root: &Path, all: u64, free: u64, reserved: u64) -> Places {
    let places = Places::under(root.to_owned());
    let directory = pool(&places, 2048);
    fs::create_dir_all(&directory).unwrap();
    for (name, number) in [("nr_hugepages", all), ("free_hugepages", free), ("resv_hugepages", reserved)] {
        fs::write(directory.join(name), format!("{number}\n")).unwrap();
    }
    places
}

#[test]
fn pools_are_named_by_size() {
    assert_eq!(parse_pools("2M=16,1g=1"), Ok(PoolPages([16, 1])));
    assert_eq!(PoolPages([16, 1]).name().as_deref(), Some("2M=16,1G=1"));
    assert_eq!(PoolPages([3, 1]).bytes(), (6 << 20) + (1 << 30));
    for wrong in ["", "16", "2M", "4M=1", "2M=-1"] {
        assert!(parse_pools(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn khugepaged_is_refused_where_linux_does_not_start_it() {
    let khugepaged = crate::advise::parse_khugepaged("max_ptes_none=0").ok();
    let conditions = Conditions { khugepaged, ..Conditions::default() };
    let set = |name: &str| parse_set(name).unwrap();
    let why = conditions.check(&[set("4K"), set("64K")]).unwrap_err().to_string();
    assert!(why.contains("folios of 2M are off"), "{why}");
    conditions.check(&[set("4K"), set("64K").on_request(set("2M"))]).unwrap();
    assert_eq!(conditions.told().khugepaged.as_deref(), Some("max_ptes_none=0"));
    Conditions::default().check(&[set("64K")]).unwrap();
}

#[test]
fn pages_in_use_are_those_that_are_free_no_more() {
    let root = tempfile::tempdir().unwrap();
    let places = pool_of(root.path(), 8, 8, 1);
    let uses = || {
        pool_of(root.path(), 8, 6, 3);
        thread::sleep(Duration::from_millis(50));
        pool_of(root.path(), 8, 8, 1);
    };
    let ((), most) = watched(PoolPages([7, 0]), &places, uses);
    assert_eq!(most, PoolPages([4, 0]), "two pages, and two that are reserved");
    assert_eq!(watched(PoolPages::default(), &places, || 5), (5, PoolPages::default()));
}
