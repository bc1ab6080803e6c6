use super::Crossings;

#[test]
fn a_call_costs_less_than_a_system_call_and_a_trap() {
    let here = Crossings::here().unwrap();
    assert!(0.0 < here.call && here.call < here.system_call && here.call < here.trap, "{here:?}");
    assert_eq!(Crossings::here(), Some(here), "measured once");
    let said = Crossings::said("fault", Some(here)).unwrap();
    assert!(said.contains("a trap ") && said.contains("a system call "), "{said}");
    assert_eq!(Crossings::said("time-bench", None), None, "no side crosses");
}
