use super::*;

/// A registration names its context by a generation that no later handler ever has.
#[test]
fn a_context_whose_generations_are_used_up_is_opened_no_more() {
    let of = |generation| State { generation, ..State::new(BootTable::empty(), BootTable::empty()) };
    assert_eq!(of(0).open(UserfaultChanges::NONE), Some(0));
    let mut last = of(u32::MAX - 1);
    assert_eq!(last.open(UserfaultChanges::FORK), Some(u32::MAX - 1));
    assert_eq!((last.open, last.wants), (true, UserfaultChanges::FORK));
    assert_eq!(last.open(UserfaultChanges::NONE), None, "it is open already");
    assert_eq!(of(u32::MAX).open(UserfaultChanges::NONE), None);
}
