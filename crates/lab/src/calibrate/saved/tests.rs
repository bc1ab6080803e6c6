use quire::arch::{Caches, ClearKernel, CopyKernel};
use quire::clear::{Calibration, Cost};

use super::{Saved, load, save};

fn some() -> Calibration {
    let mut some = Calibration::empty(Caches { first: 0, second: 0, last: 12 << 20 });
    some.clear[0][ClearKernel::Nt16 as usize][3] = Cost { fill: 70, read: 9 };
    some.clear[2][ClearKernel::String as usize][18] = Cost { fill: 71, read: 0 };
    some.stretches[1][3] = 72;
    some.copy[1][CopyKernel::Movnti as usize][0] = Cost { fill: u32::MAX, read: 1 };
    some
}

#[test]
fn what_was_saved_is_what_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calibration.json");
    save(&some(), &path).unwrap();
    assert_eq!(load(&path).unwrap(), some());
}

#[test]
fn what_is_not_this_machines_is_refused() {
    let refused = |change: &dyn Fn(&mut Saved)| {
        let mut saved = Saved::of(&some());
        change(&mut saved);
        saved.calibration().unwrap_err().to_string()
    };
    assert!(refused(&|saved| saved.version = 99).contains("calibrate anew"));
    assert!(refused(&|saved| saved.cpu = "another".to_owned()).contains("figures of `another`"));
    assert!(refused(&|saved| saved.clear[0].kernel = "memset".to_owned()).contains("memset"));
    assert!(refused(&|saved| saved.clear[0].threads = 3).contains("no table"));
    assert!(refused(&|saved| saved.copy[0].extent_bytes = 5000).contains("no table"));
    assert!(refused(&|saved| saved.stretches[0].threads = 3).contains("no table"));
    assert!(refused(&|saved| saved.stretches[0].stretch_bytes = 4096).contains("no table"));
    assert!(refused(&|saved| saved.stretch_bytes = 5000).contains("multiple of 4096"));
}

#[test]
fn what_is_no_calibration_is_said_to_be_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calibration.json");
    assert!(format!("{:#}", load(&path).unwrap_err()).contains("cannot read"));
    std::fs::write(&path, "{}").unwrap();
    assert!(format!("{:#}", load(&path).unwrap_err()).contains("quire calibrate --save"));
}
