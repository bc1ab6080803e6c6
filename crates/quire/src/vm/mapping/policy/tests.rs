use super::*;

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

#[test]
fn advice_and_override_combine() {
    let policy = FolioPolicy::FRAMES.with(order(4), OrderPolicy::Always).with(order(9), OrderPolicy::Madvise);
    let inherit = FolioOverride::default();
    assert_eq!(policy.allowed(HugeAdvice::None, inherit), OrderSet::of(&[0, 4]));
    assert_eq!(policy.allowed(HugeAdvice::Huge, inherit), OrderSet::of(&[0, 4, 9]));
    assert_eq!(policy.allowed(HugeAdvice::NoHuge, inherit), OrderSet::of(&[0]));
    let own = inherit.with(order(4), Some(false)).with(order(2), Some(true));
    assert_eq!(policy.allowed(HugeAdvice::None, own), OrderSet::of(&[0, 2]));
    assert_eq!(policy.allowed(HugeAdvice::None, own.with(order(4), None)), OrderSet::of(&[0, 2, 4]));
    assert_eq!(
        policy.allowed(HugeAdvice::Huge, FolioOverride::exactly(OrderSet::of(&[3]))),
        OrderSet::of(&[0, 3])
    );
}

#[test]
fn order_zero_cannot_be_refused() {
    let policy = FolioPolicy::LINUX.with(Order::FRAME, OrderPolicy::Never);
    let refuse = FolioOverride::default().with(Order::FRAME, Some(false));
    assert_eq!(policy.allowed(HugeAdvice::NoHuge, refuse), OrderSet::of(&[0]));
}

#[test]
fn largest_below_a_limit() {
    let set = OrderSet::of(&[0, 3, 9]);
    assert_eq!(set.largest_up_to(Order::GIGANTIC), Some(order(9)));
    let gigantic = OrderSet::of(&[0, 3, 12, 18]);
    assert_eq!(gigantic.largest_up_to(Order::GIGANTIC), Some(Order::GIGANTIC));
    assert_eq!(gigantic.largest_up_to(order(17)), Some(order(3)));
    assert_eq!(set.largest_up_to(order(8)), Some(order(3)));
    assert_eq!(set.largest_up_to(order(2)), Some(order(0)));
    assert_eq!(OrderSet::EMPTY.largest_up_to(order(9)), None);
}

#[test]
fn a_word_holds_every_policy() {
    for bits in 0..1 << 11 {
        for pmd in [false, true] {
            let mut policy = FolioPolicy::FRAMES.with_pmd_mapped(pmd).with_on_demand(bits % 2 == 1);
            for at in 1..11 {
                let choice =
                    [OrderPolicy::Never, OrderPolicy::Madvise, OrderPolicy::Always][(bits >> at) % 3];
                policy = policy.with(if at == 10 { Order::GIGANTIC } else { order(at as u8) }, choice);
            }
            assert_eq!(FolioPolicy::from_bits(policy.to_bits()), policy);
        }
    }
}
