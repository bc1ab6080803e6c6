//! Free memory by order, against a reading of every frame.

use hosted::HostedConfig;
use hosted::raw::RawPages;
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::page_alloc::{AllocatorConfig, FREE_ORDERS, FrameInfo, Gfp, Mobility, PageAllocator};
use testkit::{order, ranges_of};

const BYTES: u64 = 64 << 20;

/// The free frames, cut into aligned groups, each as large as possible.
fn naive(pages: &PageAllocator<'_, hosted::Hosted>) -> [u64; FREE_ORDERS] {
    let free: Vec<bool> =
        (0..BYTES / 4096).map(|at| pages.frames().frame_info(Frame(at)) == FrameInfo::Free).collect();
    let mut counts = [0; FREE_ORDERS];
    let mut at = 0;
    while at < free.len() {
        let fits = |order: &usize| {
            at.is_multiple_of(1 << order)
                && free[at..].iter().take(1 << order).filter(|free| **free).count() == 1 << order
        };
        match (0..FREE_ORDERS).rev().find(fits) {
            Some(order) => {
                counts[order] += 1;
                at += 1 << order;
            }
            None => at += 1,
        }
    }
    counts
}

#[test]
fn free_groups_are_those_that_a_reading_of_all_frames_finds() {
    let machine = HostedConfig::new(BYTES).build().unwrap();
    machine.run_on(CpuId(0), || {
        let pages =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        let mut live: Vec<(Frame, Order)> = Vec::new();
        for round in 0..400 {
            if live.len() < 40 || random.bool() {
                let gfp = Gfp { mobility: Mobility::ALL[random.usize(0..3)], ..Gfp::USER };
                let order = order([0, 0, 1, 2, 3, 5, 7, 9, 10][random.usize(0..9)]);
                live.extend(pages.alloc_raw(gfp, order).map(|frame| (frame, order)));
            } else {
                let (frame, order) = live.swap_remove(random.usize(0..live.len()));
                pages.free_raw(frame, order).unwrap();
            }
            if round % 20 == 0 {
                pages.lists().drain_all();
                let groups = pages.free_groups().next().unwrap();
                assert_eq!(groups.sum(), naive(&pages), "round {round}");
                let frames: u64 =
                    (0..).zip(groups.sum()).map(|(order, count): (u32, u64)| count << order).sum();
                assert_eq!(frames, pages.zone_info().map(|zone| zone.free).sum::<u64>());
                let blocks: u64 = groups.blocks.iter().sum();
                assert!(blocks <= BYTES >> 21 && blocks + 1 >= BYTES >> 21, "{blocks}");
            }
        }
        live.into_iter().for_each(|(frame, order)| pages.free_raw(frame, order).unwrap());
        let zone = pages.zone_info().next().unwrap();
        assert_eq!((zone.span.start, zone.span.count, zone.present), (Frame(0), BYTES / 4096, BYTES / 4096));
        let cached: u64 = pages.cached_on(CpuId(0), zone.node, zone.kind);
        assert_eq!(cached, zone.cached);
        pages.lists().drain_all();
    });
}
