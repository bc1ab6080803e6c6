use std::sync::{Arc, Mutex};

use super::prepare;
use crate::bench::arms::page_alloc::{Back, Crowded, Frames, Half, Operation, PageAlloc, Timed};
use crate::bench::experiment::{Sample, Skip};

/// A stack of free frames as an allocator, which may claim more frames than it has.
#[derive(Clone)]
struct Stack {
    free: Arc<Mutex<Vec<usize>>>,
    hidden: u64,
}

impl Frames for Stack {
    type Frame = usize;

    fn take<const ORDER: u8>(&mut self) -> Option<usize> {
        if ORDER == 0 { self.free.lock().unwrap().pop() } else { None }
    }

    fn give<const ORDER: u8>(&mut self, frame: usize) {
        self.free.lock().unwrap().push(frame);
    }

    fn free_frames(&self) -> Option<u64> {
        Some(self.free.lock().unwrap().len() as u64 + self.hidden)
    }
}

fn case(operation: Operation, threads: usize, count: usize) -> PageAlloc {
    PageAlloc { operation, threads, frames: 1000, count, repeats: 2, cpus: vec![0] }
}

/// Runs a case twice on a stack of `frames` frames; returns the second result.
fn run(case: &PageAlloc, frames: usize, hidden: u64) -> Result<Sample, Skip> {
    let threads = case.threads;
    let mut prepared = prepare(case, move || {
        let stack = Stack { free: Arc::new(Mutex::new((0..frames).collect())), hidden };
        Ok(vec![stack; threads])
    })?;
    prepared.run()?;
    prepared.run()
}

fn metric(sample: &Sample, name: &str) -> f64 {
    sample.metrics.iter().find(|(metric, _)| metric.name == name).unwrap().1
}

#[test]
fn every_frame_that_is_taken_is_counted() {
    let half = Half { timed: Timed::Free, back: Back::Random, bulk: true };
    for (operation, frames) in [
        (Operation::Pair(0), 2 * 50),
        (Operation::Sweep, 2 * 50),
        (Operation::Half(half), 2 * 50),
        (Operation::Half(Half { timed: Timed::Alloc, back: Back::NewestFirst, bulk: false }), 2 * 50),
    ] {
        for threads in [1, 2, 3] {
            let sample = run(&case(operation, threads, 50), 1000, 0).unwrap();
            assert_eq!(sample.counters["frames"], frames * threads as u64, "{operation:?} on {threads}");
            if matches!(operation, Operation::Sweep | Operation::Half(_)) {
                assert_eq!(sample.counters["different"], 50 * threads as u64, "{operation:?}");
            }
            assert!(metric(&sample, "time") > 0.0 && metric(&sample, "cycles") > 0.0);
        }
    }
}

#[test]
fn a_loop_that_gets_no_frame_says_so_and_ends() {
    for operation in [Operation::Sweep, Operation::Pair(0), Operation::Pair(3)] {
        let frames = if operation == Operation::Sweep { 40 } else { 0 };
        let Skip(reason) = run(&case(operation, 1, 50), frames, 0).unwrap_err();
        assert!(reason.contains("out of memory"), "{operation:?}: {reason}");
    }
    // The thread that frees must not wait for frames that never come.
    for operation in [Operation::Cross, Operation::FewFree] {
        let Skip(reason) = run(&case(operation, 2, 5000), 0, 0).unwrap_err();
        assert!(reason.contains("no frame after 0"), "{reason}");
    }
    let Skip(reason) = run(&case(Operation::FewFree, 4, 5000), 700, 0).unwrap_err();
    assert!(reason.contains("of 40000"), "{reason}");
    assert!(run(&case(Operation::Pair(77), 1, 1), 10, 0).is_err());
}

#[test]
fn frames_pass_from_one_thread_to_the_other() {
    let sample = run(&case(Operation::Cross, 2, 5001), 3000, 0).unwrap();
    assert_eq!(sample.counters["frames"], 2 * 5001);
    assert!(metric(&sample, "ring") > 0.0);
    // Four threads allocate 2 * 5001 each, which is all in flight at no time. All that is allocated is freed.
    let stack = Stack { free: Arc::new(Mutex::new((0..6000).collect())), hidden: 0 };
    let sources = vec![stack.clone(); 4];
    let few = case(Operation::FewFree, 4, 5001);
    let sample = prepare(&few, || Ok(sources.clone())).unwrap().run().unwrap();
    assert_eq!((sample.counters["frames"], stack.free_frames()), (4 * 2 * 5001, Some(6000)));
    assert!(metric(&sample, "ring") > 0.0 && metric(&sample, "time") > 0.0);
}

#[test]
fn a_false_out_of_memory_is_found() {
    let scarce = case(Operation::Crowded(Crowded::Scarce), 1, 50);
    let sample = run(&scarce, 1000, 0).unwrap();
    assert_eq!((sample.counters["frames"], sample.counters["left"]), (1000, 0));
    let Skip(reason) = run(&scarce, 1000, 3).unwrap_err();
    assert!(reason.contains("3 were free"), "{reason}");
    assert!(run(&scarce, 4, 0).is_err(), "nothing can be left free of 4 frames");
}

#[test]
fn nine_tenths_of_the_frames_stay_in_use() {
    let sample = run(&case(Operation::Crowded(Crowded::Pairs), 1, 50), 1000, 0).unwrap();
    assert_eq!(sample.counters["frames_in_use"], 900);
    let mixed = case(Operation::Crowded(Crowded::Mixed), 1, 500);
    let (first, again) = (run(&mixed, 1000, 0).unwrap(), run(&mixed, 1000, 0).unwrap());
    assert_eq!(first.counters, again.counters);
    // The stack has no folios of higher orders, which the mix requests.
    assert!(first.counters["refused"] > 0 && first.counters["refused"] < 250);
    assert!(metric(&first, "longest") >= metric(&first, "time"));
}

#[test]
fn frames_all_over_the_memory_are_counted_and_come_back() {
    let emptied = run(&case(Operation::Crowded(Crowded::Emptied), 1, 700), 1000, 0).unwrap();
    assert_eq!((emptied.counters["frames"], emptied.counters["different"]), (700, 700));
    let batches = run(&case(Operation::Crowded(Crowded::Batches), 1, 50), 1000, 0).unwrap();
    assert_eq!((batches.counters["different"], batches.counters["frames_in_use"]), (50, 900));
    let cold = run(&case(Operation::Crowded(Crowded::Cold), 1, 5), 1000, 0).unwrap();
    assert_eq!(cold.counters["frames_in_use"], 900);
    for sample in [emptied, batches, cold] {
        assert!(metric(&sample, "time") > 0.0);
    }
    for (what, count) in [(Crowded::Emptied, 1001), (Crowded::Batches, 101)] {
        let Skip(reason) = run(&case(Operation::Crowded(what), 1, count), 1000, 0).unwrap_err();
        assert!(reason.contains("out of memory"), "{what:?}: {reason}");
    }
}
