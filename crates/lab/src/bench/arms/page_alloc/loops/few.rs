//! Several CPUs allocate frames, and one frees them all, as a user-space allocator does whose purging thread gives memory
//! back for all others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use super::cross::{ON_THE_WAY, pause, send};
use super::work::{RING, ThreadWork, Worker, no_frame};
use crate::bench::arms::page_alloc::case::{Frames, PageAlloc};
use crate::bench::experiment::{Sample, Skip};
use crate::host::cycles::{Moment, Span};
use crate::host::threads::{Meeting, together};

enum Role<'a, T, F> {
    Takes(Producer<T>, &'a mut F),
    Gives(Vec<Consumer<T>>, &'a mut F),
}

/// One role for each source: the last frees what all others allocate.
fn roles<'a, T, F>(mut sources: Vec<&'a mut F>) -> Vec<Role<'a, T, F>> {
    let Some(giver) = sources.pop() else { return Vec::new() };
    let mut received = Vec::new();
    let mut roles: Vec<Role<'a, T, F>> = Vec::new();
    for source in sources {
        let (sent, end) = RingBuffer::new(ON_THE_WAY);
        received.push(end);
        roles.push(Role::Takes(sent, source));
    }
    roles.push(Role::Gives(received, giver));
    roles
}

pub(super) fn run<F: Frames>(case: &PageAlloc, workers: &mut [Worker<F>]) -> Result<Sample, Skip> {
    if workers.len() < 2 {
        return Err(Skip("this case needs two threads: one allocates, the other frees".to_owned()));
    }
    let (count, takers) = (case.count * case.repeats, workers.len() - 1);
    let (short, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut frames = roles(workers.iter_mut().map(|worker| &mut worker.source).collect());
    let threads = together(&mut frames, &case.cpus, |role, meeting| match role {
        Role::Takes(ring, source) => {
            let work = source.as_cpu(|source| send(ring, count, &short, meeting, |_| source.take::<0>()));
            sent.fetch_add(1, Ordering::Release);
            work
        }
        Role::Gives(rings, source) => source
            .as_cpu(|source| receive(rings, count * takers, &sent, meeting, |frame| source.give::<0>(frame))),
    });
    let taken: u64 = threads[..takers].iter().map(|thread| thread.taken).sum();
    let expected = (count * takers) as u64;
    if taken < expected {
        return Err(no_frame(taken, expected));
    }
    // These send all, so the count of senders that are done does not end it early.
    sent.store(0, Ordering::Relaxed);
    let mut nothing = vec![(); takers + 1];
    let mut numbers = roles(nothing.iter_mut().collect());
    let ring = together(&mut numbers, &case.cpus, |role, meeting| match role {
        Role::Takes(ring, ()) => send(ring, count, &short, meeting, Some),
        Role::Gives(rings, ()) => receive(rings, count * takers, &sent, meeting, |_: usize| ()),
    });
    let ring = whole(&ring).nanoseconds / expected as f64;
    Ok(Sample::of(whole(&threads), expected as f64, taken).metric(RING, ring).count("frames", taken))
}

/// From the first start to the last end.
fn whole(threads: &[ThreadWork]) -> Span {
    let start = threads.iter().map(|thread| thread.start).reduce(Moment::earlier);
    let end = threads.iter().map(|thread| thread.end).reduce(Moment::later);
    start.zip(end).map_or_else(|| Moment::now().until(Moment::now()), |(start, end)| start.until(end))
}

/// Receives `count` items from all rings, by turns; fewer if all senders are done and nothing is on its way.
fn receive<T>(
    rings: &mut [Consumer<T>],
    count: usize,
    sent: &AtomicUsize,
    meeting: &Meeting,
    mut take: impl FnMut(T),
) -> ThreadWork {
    meeting.wait();
    let start = Moment::now();
    let (mut taken, mut turns) = (0, 0_u32);
    while taken < count {
        // Read before the rings, which get nothing after it has reached their number.
        let last = sent.load(Ordering::Acquire) == rings.len();
        let before = taken;
        for ring in &mut *rings {
            if let Ok(chunk) = ring.read_chunk(ring.slots()) {
                taken += chunk.len();
                chunk.into_iter().for_each(&mut take);
            }
        }
        if taken == before {
            if last {
                break;
            }
            pause(&mut turns);
        }
    }
    ThreadWork { start, end: Moment::now(), taken: taken as u64 }
}
