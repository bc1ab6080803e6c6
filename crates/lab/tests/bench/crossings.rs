//! What only Linux pays for. Beside the module it would compile every experiment into the unit tests, which
//! run none.

use std::collections::BTreeSet;

use lab::bench::crossings::{is_one_sided, one_sided};
use lab::bench::experiments;

#[test]
fn every_experiment_against_linux_says_what_only_linux_pays() {
    let names: BTreeSet<&str> = experiments::ALL.iter().map(|experiment| experiment.name).collect();
    for name in one_sided() {
        assert!(names.contains(name), "{name} is none");
    }
    // `boot` reads what the kernel has counted, and has no work of the kernel in it.
    let against_linux =
        experiments::ALL.iter().filter(|one| one.baseline.contains(&"linux") && one.name != "boot");
    for experiment in against_linux {
        assert!(is_one_sided(experiment.name), "{}", experiment.name);
    }
}
