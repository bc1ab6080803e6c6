use super::ALL;
use crate::bench::folio::Folio;

#[test]
fn every_experiment_has_a_name_a_question_and_an_expectation() {
    for (index, experiment) in ALL.iter().enumerate() {
        assert!(experiment.question.ends_with('?'), "{}", experiment.name);
        assert!(!experiment.expectation.is_empty() && !experiment.baseline.is_empty(), "{}", experiment.name);
        assert!(ALL[..index].iter().all(|other| other.name != experiment.name), "{} twice", experiment.name);
    }
}

#[test]
fn folio_names_are_the_agreed_ones() {
    let names: Vec<String> = Folio::all().map(Folio::name).collect();
    let agreed = "4KiB 8KiB 16KiB 32KiB 64KiB 128KiB 256KiB 512KiB 1MiB 2MiB-pte 2MiB-pmd";
    assert_eq!(names.join(" "), agreed);
}
