use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use super::*;
use crate::host::thp::selected;
use crate::replay::parse_set;
use crate::settings::one_at_a_time;

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
    for wrong in
        ["", "16", "2M", "4M=1", "2M=-1", "2M=18446744073709551615", "2M=4,2m=8", "1G=18014398509481983"]
    {
        assert!(parse_pools(wrong).is_err(), "{wrong}");
    }
}

/// The kernel takes as much as it can from all other programs, if it is asked.
#[test]
fn a_pool_that_the_machine_has_no_memory_for_is_not_asked_for() {
    let _alone = one_at_a_time();
    let root = tempfile::tempdir().unwrap();
    let places = pool_of(root.path(), 3, 2, 0);
    fs::create_dir_all(&places.state).unwrap();
    let settings = Settings::acquire(&places).unwrap();
    let all = || Pool::read(&pool(&places, 2048)).map(|pages| pages.all);
    let wants =
        |pages| fill(&settings, &places, 16 << 20, POOLS[0], pages).map_err(|error| error.to_string());
    for pages in [10, 1_000_000_000, MOST_BYTES >> 21] {
        let why = wants(pages).unwrap_err();
        assert!(why.contains("memory for 7 more"), "two are free, 8 would be all there is: {why}");
        assert_eq!(all(), Some(3));
    }
    let why = wants(9).unwrap_err();
    assert!(why.contains("memory is in use, or in pieces"), "no kernel grants it here: {why}");
    assert_eq!(all(), Some(10));
    wants(2).unwrap();
    drop(settings);
    assert_eq!(all(), Some(3));
}

#[test]
fn what_was_set_before_a_refusal_is_put_back() {
    let _alone = one_at_a_time();
    let root = tempfile::tempdir().unwrap();
    let places = pool_of(root.path(), 3, 2, 0);
    let limit = places.settings.join("khugepaged/max_ptes_none");
    for directory in [places.state.as_path(), limit.parent().unwrap()] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::write(&limit, "511\n").unwrap();
    let khugepaged = crate::advise::parse_khugepaged("max_ptes_none=0").ok();
    let conditions = Conditions { khugepaged, shmem: parse_set("64K").ok(), ..Conditions::default() };
    let settings = Settings::acquire(&places).unwrap();
    let why = conditions.apply(&settings, &places).unwrap_err().to_string();
    assert!(why.contains("no folios of 64 KiB for shared memory"), "{why}");
    let limit = || selected(&limit);
    assert_eq!(limit().as_deref(), Some("0"));
    drop(settings);
    assert_eq!(limit().as_deref(), Some("511"));
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

/// Else the settings would stay changed for as long as the process hangs.
#[test]
fn a_panic_ends_the_watch() {
    let (ends, ended) = mpsc::channel();
    thread::spawn(move || {
        let root = tempfile::tempdir().unwrap();
        let places = pool_of(root.path(), 8, 8, 0);
        let panics = || watched(PoolPages([1, 0]), &places, || panic!("in the middle of a run"));
        let _ = ends.send(catch_unwind(AssertUnwindSafe(panics)).is_err());
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true));
}
