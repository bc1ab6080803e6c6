//! One CPU allocates frames, another frees them, as the receiver of packets does.

use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use super::work::{RING, ThreadWork, Worker, no_frame, per_page};
use crate::bench::arms::page_alloc::case::{Frames, PageAlloc};
use crate::bench::experiment::{Sample, Skip};
use crate::host::cycles::{Moment, Span};
use crate::host::threads::{Meeting, together};

/// Frames that may be on their way from one CPU to the other.
pub(super) const ON_THE_WAY: usize = 1024;

/// Frames that are handed over together, as a polling driver does, so that the ring's cache lines move once
/// for many.
pub(super) const HANDED_OVER: usize = 64;

enum Role<'a, T, F> {
    Takes(Producer<T>, &'a mut F),
    Gives(Consumer<T>, &'a mut F),
}

pub(super) fn run<F: Frames>(case: &PageAlloc, workers: &mut [Worker<F>]) -> Result<Sample, Skip> {
    let [taker, giver] = workers else {
        return Err(Skip("this case needs two threads: one allocates, the other frees".to_owned()));
    };
    let (sent, received) = RingBuffer::new(ON_THE_WAY);
    let (alone, got) = RingBuffer::new(ON_THE_WAY);
    let mut frames = [Role::Takes(sent, &mut taker.source), Role::Gives(received, &mut giver.source)];
    let count = case.count * case.repeats;
    let short = AtomicBool::new(false);
    let threads = together(&mut frames, &case.cpus, |role, meeting| match role {
        Role::Takes(ring, source) => {
            source.as_cpu(|source| send(ring, count, &short, meeting, |_| source.take::<0>()))
        }
        Role::Gives(ring, source) => {
            source.as_cpu(|source| receive(ring, count, &short, meeting, |frame| source.give::<0>(frame)))
        }
    });
    let taken = threads[0].taken;
    if taken < count as u64 {
        return Err(no_frame(taken, count as u64));
    }
    let (mut nothing, mut neither) = ((), ());
    let mut numbers = [Role::Takes(alone, &mut nothing), Role::Gives(got, &mut neither)];
    let ring = together(&mut numbers, &case.cpus, |role, meeting| match role {
        Role::Takes(ring, ()) => send(ring, count, &short, meeting, Some),
        Role::Gives(ring, ()) => receive(ring, count, &short, meeting, |_| ()),
    });
    // Both threads work on the same frames: the time of a page is the whole time over the pages that passed.
    let page = |threads: &[ThreadWork]| -> Result<Span, Skip> {
        Ok(per_page(case, threads)?.0 * (2.0 / busy(case)))
    };
    let ring = page(&ring)?;
    Ok(Sample::of(page(&threads)?, 1.0, taken).metric(RING, ring.nanoseconds).count("frames", taken))
}

fn busy(case: &PageAlloc) -> f64 {
    case.threads.min(case.cpus.len()) as f64
}

/// Sends `count` items. If one cannot be made, sets `short`; the items in the ring still arrive.
pub(super) fn send<T: Copy + Default>(
    ring: &mut Producer<T>,
    count: usize,
    short: &AtomicBool,
    meeting: &Meeting,
    mut make: impl FnMut(usize) -> Option<T>,
) -> ThreadWork {
    let mut things = [T::default(); HANDED_OVER];
    meeting.wait();
    let start = Moment::now();
    let mut taken = 0;
    while taken < count {
        let wanted = HANDED_OVER.min(count - taken);
        let made =
            (0..wanted).take_while(|&at| make(taken + at).map(|thing| things[at] = thing).is_some()).count();
        let mut turns = 0_u32;
        while ring.slots() < made {
            pause(&mut turns);
        }
        if let Ok(room) = ring.write_chunk_uninit(made) {
            taken += room.fill_from_iter(things);
        }
        if made < wanted {
            short.store(true, Ordering::Release);
            break;
        }
    }
    ThreadWork { start, end: Moment::now(), taken: taken as u64 }
}

fn receive<T>(
    ring: &mut Consumer<T>,
    count: usize,
    short: &AtomicBool,
    meeting: &Meeting,
    mut take: impl FnMut(T),
) -> ThreadWork {
    meeting.wait();
    let start = Moment::now();
    let (mut taken, mut turns) = (0, 0_u32);
    while taken < count {
        // Read before the ring, since nothing is sent after it was set.
        let last = short.load(Ordering::Acquire);
        match ring.read_chunk(ring.slots()) {
            Ok(chunk) if !chunk.is_empty() => {
                taken += chunk.len();
                chunk.into_iter().for_each(&mut take);
            }
            _ if last => break,
            _ => pause(&mut turns),
        }
    }
    ThreadWork { start, end: Moment::now(), taken: taken as u64 }
}

/// Waits briefly. With fewer CPUs than threads, it yields, since the other thread may need this CPU.
pub(super) fn pause(turns: &mut u32) {
    *turns += 1;
    if turns.is_multiple_of(1024) { std::thread::yield_now() } else { std::hint::spin_loop() }
}
