//! Random verbs in lockstep with a naive model, under failing allocations.

use fastrand::Rng;
use hosted::FailurePlan;
use hosted::raw::RawPools;
use quire::addr::Frame;
use quire::hugetlb::{DescriptorPolicy, HugeSize, PoolInfo};
use quire::page_alloc::NodeSet;

use crate::hugetlb::support::{BOTH, GIB, MIB, World, two_nodes, with_policy};
use testkit::seed;

use HugeSize::{Size1G, Size2M};

/// The model of a pool: its numbers, and its pages in use.
#[derive(Default)]
struct Model {
    persistent: u64,
    used: Vec<(Frame, bool)>,
    reserved: u64,
}

impl Model {
    /// Holds with any amount of memory.
    fn check(&self, info: PoolInfo) {
        assert_eq!(info.total - info.free, self.used.len() as u64, "every page in use has an owner");
        assert_eq!(info.reserved, self.reserved);
        assert_eq!(info.persistent(), self.persistent);
    }
}

fn step(world: &World<'_, '_>, model: &mut [Model; 2], rng: &mut Rng) {
    let size = if rng.u8(..4) == 0 { Size1G } else { Size2M };
    let most = if size == Size1G { 4 } else { 60 };
    let (pools, pages) = (world.pools, world.pages);
    let own = &mut model[size as usize];
    let before = world.info(size);
    match rng.u8(..12) {
        0..3 => {
            let wanted = rng.u64(..most);
            let done = if rng.bool() {
                pools.resize(pages, size, BOTH, wanted)
            } else {
                let node = rng.u8(..2);
                let others = before.persistent() - pools.node_info(pages, size, node).persistent();
                let done = pools.resize_node(pages, size, node, wanted);
                own.persistent = others + done.after;
                assert!(done.stopped.is_some() || done.after == wanted, "{done:?}");
                return;
            };
            assert!(done.stopped.is_some() || done.after == wanted, "{done:?}");
            own.persistent = done.after;
        }
        3..6 => {
            let reserved = own.reserved > 0 && rng.bool();
            if let Ok(frame) = pools.take(pages, size, NodeSet::ALL, reserved) {
                assert!(own.used.iter().all(|&(used, _)| used != frame), "no page is handed out twice");
                own.used.push((frame, reserved));
                own.reserved -= u64::from(reserved);
            } else {
                assert!(!reserved, "a reservation is kept");
            }
        }
        6..8 if !own.used.is_empty() => {
            let (frame, reserved) = own.used.swap_remove(rng.usize(..own.used.len()));
            let again = reserved && rng.bool();
            own.reserved += u64::from(again);
            pools.give_raw(pages, size, frame, again);
            // A surplus page of another node is freed instead: the numbers stay.
            own.persistent = world.info(size).persistent();
        }
        8 => {
            let count = rng.u64(..most / 2);
            own.reserved += if pools.reserve(pages, size, count).is_ok() { count } else { 0 };
        }
        9 => {
            let count = rng.u64(..=own.reserved);
            pools.unreserve(pages, size, count);
            own.reserved -= count;
        }
        10 => pools.set_overcommit(pages, size, rng.u64(..8)),
        _ => {
            let done = if rng.bool() {
                pools.demote(pages, BOTH, 1).done as i64
            } else {
                -(pools.promote(pages, BOTH, 1).done as i64)
            };
            let change = |persistent: u64, pages: i64| persistent.wrapping_add_signed(pages);
            model[0].persistent = change(model[0].persistent, 512 * done);
            model[1].persistent = change(model[1].persistent, -done);
        }
    }
}

#[test]
fn pools_and_model_agree() {
    agree(DescriptorPolicy::InBlock);
}

#[test]
fn pools_and_model_agree_over_a_window() {
    agree(DescriptorPolicy::Full);
}

#[test]
fn pools_and_model_agree_over_a_window_page_by_page() {
    agree(DescriptorPolicy::PerPage);
}

#[test]
fn pools_and_model_agree_over_a_window_in_batches() {
    agree(DescriptorPolicy::Batched);
}

#[test]
fn mask_tail() {
    agree(DescriptorPolicy::MaskTail);
}

fn agree(policy: DescriptorPolicy) {
    for (number, plan) in [FailurePlan::Off, FailurePlan::Every(7)].into_iter().enumerate() {
        with_policy(policy, two_nodes(2 * GIB + 64 * MIB), |world| {
            let (mut rng, mut model) = (Rng::with_seed(seed(3) + number as u64), <[Model; 2]>::default());
            world.machine.set_failures(plan);
            for round in 0..3000 {
                step(world, &mut model, &mut rng);
                model[0].check(world.info(Size2M));
                model[1].check(world.info(Size1G));
                if round % 100 == 0 {
                    world.check();
                }
            }
            world.machine.set_failures(FailurePlan::Off);
            for (size, model) in [Size2M, Size1G].into_iter().zip(model) {
                model
                    .used
                    .iter()
                    .for_each(|&(frame, _)| world.pools.give_raw(world.pages, size, frame, false));
                world.pools.unreserve(world.pages, size, model.reserved);
            }
        });
    }
}
