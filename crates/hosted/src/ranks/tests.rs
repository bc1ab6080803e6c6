use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

fn refused(action: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(action)).expect_err("the checker let a wrong order pass");
    payload.downcast_ref::<String>().cloned().expect("the checker's message is formatted")
}

#[test]
fn ascending_orders_pass_and_may_be_given_back_in_any_order() {
    let held = HeldRanks::none();
    ALL.iter().for_each(|&rank| held.take(rank));
    ALL.iter().for_each(|&rank| held.give_back(rank));
    held.take(Rank::PageTable);
    held.take(Rank::PageTableSecond);
    held.give_back(Rank::PageTable);
    held.give_back(Rank::PageTableSecond);
    assert_eq!(held.replace(0), 0);
}

#[test]
fn every_descending_or_equal_pair_is_refused_with_both_names() {
    for (at, &first) in ALL.iter().enumerate() {
        for &second in &ALL[..=at] {
            let held = HeldRanks::none();
            held.take(first);
            let message = refused(|| held.take(second));
            assert!(
                message.contains(&format!("{second:?} was asked for while {first:?} is held")),
                "{message}"
            );
        }
    }
}

#[test]
fn giving_back_what_is_not_held_is_refused() {
    let held = HeldRanks::none();
    held.take(Rank::Slab);
    assert!(refused(|| held.give_back(Rank::Pool)).contains("Pool"));
}
