use quire::arch::{Caches, ClearKernel, CopyKernel};
use quire::clear::{Calibration, Cost};

use super::{Machine, Saved, load, save};

fn some() -> Calibration {
    let mut some = Calibration::empty(Caches::detect());
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
    assert!(refused(&|saved| saved.clear[0].kernel = "memset".to_owned()).contains("memset"));
    assert!(refused(&|saved| saved.clear[0].threads = 3).contains("no table"));
    assert!(refused(&|saved| saved.copy[0].extent_bytes = 5000).contains("no table"));
    assert!(refused(&|saved| saved.stretches[0].threads = 3).contains("no table"));
    assert!(refused(&|saved| saved.stretches[0].stretch_bytes = 4096).contains("no table"));
    assert!(refused(&|saved| saved.stretch_bytes = 5000).contains("multiple of 4096"));
}

/// The same name is not the same machine: a guest may have fewer features and other caches.
#[test]
fn a_machine_is_its_name_its_features_and_its_caches() {
    let this = Machine::this();
    let refused = |change: &dyn Fn(&mut Machine)| {
        let mut other = this.clone();
        change(&mut other);
        assert_eq!(this.check(&other).is_err(), other.check(&this).is_err());
        other.check(&this).unwrap_err().to_string()
    };
    assert!(this.check(&this).is_ok());
    assert!(refused(&|other| other.cpu = "another".to_owned()).contains("figures of `another`"));
    let said = refused(&|other| other.features = vec!["fsrm".to_owned()]);
    assert!(said.contains("a processor with `fsrm`") && said.ends_with("calibrate anew"), "{said}");
    assert!(refused(&|other| drop(other.features.pop())).contains("a processor with"));
    for change in [
        (|other| other.first_cache_bytes += 1 << 10) as fn(&mut Machine),
        |other| other.second_cache_bytes += 1 << 10,
        |other| other.last_cache_bytes += 1 << 20,
    ] {
        let said = refused(&change);
        assert!(said.contains("caches of") && said.ends_with("calibrate anew"), "{said}");
    }
}

#[test]
fn a_machine_without_a_name_is_no_other_one_without() {
    let nameless = Machine { cpu: String::new(), ..Machine::this() };
    assert!(nameless.check(&nameless).unwrap_err().to_string().contains("does not say its name"));
}

#[test]
fn what_is_no_calibration_is_said_to_be_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calibration.json");
    let refused = || format!("{:#}", load(&path).unwrap_err());
    assert!(refused().contains("cannot read"));
    for none in ["{}", "[]", "", "{\"version\": 3}"] {
        std::fs::write(&path, none).unwrap();
        assert!(
            refused().contains("no calibration: make one with `quire calibrate`"),
            "{none}: {}",
            refused()
        );
    }
}

/// Files of the previous version, which named the processor alone, and of a future one.
#[test]
fn another_form_is_told_from_what_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calibration.json");
    for old in [
        r#"{"version": 2, "cpu": "x", "stretch_bytes": 524288, "last_cache_bytes": 1, "clear": [], "copy": [], "stretches": []}"#,
        r#"{"version": 99}"#,
    ] {
        std::fs::write(&path, old).unwrap();
        let said = format!("{:#}", load(&path).unwrap_err());
        assert!(said.contains("a form of version") && said.ends_with("calibrate anew"), "{said}");
    }
}
