//! A store takes the page back that was reserved for it, while its process' children come and go.

use std::sync::Mutex;

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::hugetlb::HugeSize::Size2M;
use quire::vm::{Access, Mm};

use crate::hugetlb::reserved::{at_calls, stored};
use crate::hugetlb::support::MIB;
use crate::hugetlb::world::{BASE, check, load, private, store, with_config, within};

/// Walks of a family that find no leaf of the page, though children map it, before a store is refused.
const WALKS: u64 = 4;

/// Each walk finds no child: the one that maps the page ends before the walk comes to it, and another one is born behind
/// the walk's end. The store is refused then, and does not try for ever. Where one walk less is in vain it succeeds.
#[test]
fn a_store_is_refused_when_no_walk_finds_the_child_that_maps_its_page() {
    with_config(HostedConfig::new(64 * MIB).with_cpus(2), Size2M, 1, |machine, manager| {
        // At each of these calls of the store the child ends, or another one is born, in turn.
        let scene = |moments: &[u64]| {
            let mm = stored(machine, manager, &private(BASE, 1));
            let child = Mutex::new(Some(mm.fork().unwrap()));
            let step = || {
                let mut child = child.lock().unwrap();
                match child.take() {
                    Some(old) => old.exit(),
                    None => *child = Some(mm.fork().unwrap()),
                }
            };
            let steps = vec![&step as &(dyn Fn() + Sync); moments.len()];
            let stores = || mm.fault(VirtAddr(BASE), Access::Write).map(drop);
            let (calls, stored) = at_calls(machine, moments, stores, &steps);
            child.into_inner().unwrap().into_iter().for_each(Mm::exit);
            within(&mm, || {
                store(machine, &mm, BASE + 8, 11).expect("no other process maps it");
                assert_eq!(load(machine, &mm, BASE), Ok(10), "at calls {moments:?} of {calls}");
            });
            mm.exit();
            check(manager);
            (calls, stored)
        };
        let (calls, stored) = scene(&[]);
        assert_eq!(stored, Ok(()));
        // A walk in vain costs as many calls as it adds to those of the store.
        let in_vain = |pair: [u64; 2], walks: u64| {
            let length = scene(&pair).0.saturating_sub(calls);
            let moments: Vec<_> =
                (0..walks).flat_map(|walk| pair.map(|moment| moment + walk * length)).collect();
            (length > 0).then(|| scene(&moments).1)
        };
        let mut pairs = (0..calls).flat_map(|first| (first + 1..calls).map(move |second| [first, second]));
        let refused = Some(Err(FaultError::NoHugePage));
        let pair = pairs.find(|&pair| in_vain(pair, WALKS) == refused);
        let pair = pair.expect("two calls of a walk between which it finds no child");
        assert_eq!(in_vain(pair, WALKS - 1), Some(Ok(())));
    });
}
