//! A store fence follows stores past the caches before each reschedule point, before the end and before a
//! cancelled clear returns, and none follows others.

use hosted::HostedConfig;
use hosted::raw::RawClearer;
use quire::addr::{Frame, FrameRange};
use quire::arch::{ClearKernel, CopyKernel};
use quire::clear::{ClearPolicy, Clearer, Extent};
use quire::cpu::CpuId;
use quire::limits::CLEAR_STRETCH_BYTES;
use quire::platform::{FramePlatform, TouchHint};

use crate::watched::{Event, Watched};

const STRETCH: u64 = CLEAR_STRETCH_BYTES / 4096;

/// How many fences these events have. No task can move, and nothing can be published, while stores past the
/// caches are not fenced.
fn fences(events: &[Event]) -> usize {
    let (mut open, mut count) = (false, 0);
    for event in events {
        match event {
            Event::Clear(_, kernel) => open |= kernel.is_streaming(),
            Event::Fence => {
                assert!(open, "a fence in vain: {events:?}");
                (open, count) = (false, count + 1);
            }
            Event::Point => assert!(!open, "the task may move with stores of its own behind it: {events:?}"),
            _ => {}
        }
    }
    assert!(!open, "the caller publishes what may not have arrived: {events:?}");
    count
}

#[test]
fn a_fence_stands_where_stores_passed_the_caches_and_nowhere_else() {
    let machine = HostedConfig::new(16 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let watched = Watched::new(&machine);
        let clearer = Clearer::new(&watched, None).unwrap();
        let features = watched.features();
        for kernel in ClearKernel::ALL.into_iter().filter(|kernel| kernel.on(features).is_ok()) {
            clearer.set_policy(&ClearPolicy::only(kernel, CopyKernel::String)).unwrap();
            for vectors in [false, true] {
                watched.give_vectors(vectors);
                for (frames, near) in
                    [(1, None), (STRETCH, None), (5 * STRETCH, None), (5 * STRETCH, Some(7))]
                {
                    let extent = Extent::new(FrameRange::new(Frame(0), frames), TouchHint::Later);
                    let extent = near.map_or(extent, |near| extent.near(Frame(near)));
                    watched.events();
                    clearer.clear_extent_raw(&watched, &extent, || false).unwrap();
                    let events = watched.events();
                    let points = events.iter().filter(|event| **event == Event::Point).count();
                    let streams = |event: &Event| matches!(event, Event::Clear(_, by) if by.is_streaming());
                    let expected = if events.iter().any(streams) { points + 1 } else { 0 };
                    assert_eq!(fences(&events), expected, "{kernel:?} {frames}");
                    // Cancelled after the first stretch.
                    let _ = clearer.clear_extent_raw(&watched, &extent, || true);
                    assert!(fences(&watched.events()) <= 1);
                }
                clearer.clear_raw(&watched, FrameRange::new(Frame(3), STRETCH), TouchHint::Soon);
                assert_eq!(fences(&watched.events()), usize::from(kernel.is_streaming()));
            }
        }
    });
}
