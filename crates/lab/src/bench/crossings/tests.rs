use super::{Crossings, ONE_SIDED, is_one_sided};
use crate::bench::experiments;

#[test]
fn a_call_costs_less_than_a_system_call_and_a_trap() {
    let here = Crossings::here().unwrap();
    assert!(0.0 < here.call && here.call < here.system_call && here.call < here.trap, "{here:?}");
    assert_eq!(Crossings::here(), Some(here), "measured once");
    let said = Crossings::said("fault", Some(here)).unwrap();
    assert!(said.contains("a trap ") && said.contains("a system call "), "{said}");
}

#[test]
fn every_experiment_against_linux_says_what_only_linux_pays() {
    for (name, _) in ONE_SIDED {
        assert!(experiments::ALL.iter().any(|experiment| experiment.name == *name), "{name} is none");
    }
    // `boot` reads what the kernel has counted, and has no work of the kernel in it.
    let against_linux =
        experiments::ALL.iter().filter(|one| one.baseline.contains(&"linux") && one.name != "boot");
    for experiment in against_linux {
        assert!(is_one_sided(experiment.name), "{}", experiment.name);
    }
    assert_eq!(Crossings::said("time-bench", None), None, "no side crosses");
}
