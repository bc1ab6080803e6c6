//! All CPUs allocate frames, and one of them frees them all, as a user-space allocator does whose purging
//! thread gives memory back for all others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use super::cross::{HANDED_OVER, ON_THE_WAY, pause, send};
use super::work::{RING, ThreadWork, Worker, no_frame};
use crate::bench::arms::page_alloc::case::{Frames, PageAlloc};
use crate::bench::experiment::{Sample, Skip};
use crate::host::cycles::{Moment, Span};
use crate::host::threads::{Meeting, together};

enum Role<'a, T, F> {
    Takes(Producer<T>, &'a mut F),
    Gives(Vec<Consumer<T>>, &'a mut F),
}

/// One role for each source: the last allocates too, and frees what all allocate.
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
        return Err(Skip("this case needs two threads: both allocate, one frees".to_owned()));
    }
    let (count, all) = (case.count * case.repeats, workers.len());
    let (short, senders_done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let amount = Amount { own: count, all: count * all };
    let mut frames = roles(workers.iter_mut().map(|worker| &mut worker.source).collect());
    let threads = together(&mut frames, &case.cpus, |role, meeting| match role {
        Role::Takes(ring, source) => {
            let work = source.as_cpu(|source| send(ring, count, &short, meeting, |_| source.take::<0>()));
            senders_done.fetch_add(1, Ordering::Release);
            work
        }
        Role::Gives(rings, source) => source.as_cpu(|source| {
            receive(rings, amount, &senders_done, meeting, |call| match call {
                Call::Take => source.take::<0>(),
                Call::Give(frame) => {
                    source.give::<0>(frame);
                    None
                }
            })
        }),
    });
    let expected = amount.all as u64;
    // The last thread counts what it has freed, which is what all have allocated.
    let freed = threads.last().map_or(0, |thread| thread.taken);
    if freed < expected {
        return Err(no_frame(freed, expected));
    }
    // These send all, so the count of senders that are done does not end it early.
    senders_done.store(0, Ordering::Relaxed);
    let mut nothing = vec![(); all];
    let mut numbers = roles(nothing.iter_mut().collect());
    let ring = together(&mut numbers, &case.cpus, |role, meeting| match role {
        Role::Takes(ring, ()) => send(ring, count, &short, meeting, Some),
        Role::Gives(rings, ()) => receive(rings, amount, &senders_done, meeting, |call| match call {
            Call::Take => Some(0),
            Call::Give(_) => None,
        }),
    });
    let ring = whole(&ring).nanoseconds / expected as f64;
    Ok(Sample::of(whole(&threads), expected as f64, freed).metric(RING, ring).count("frames", freed))
}

/// How many frames the last thread allocates, and how many it frees.
#[derive(Clone, Copy)]
struct Amount {
    own: usize,
    all: usize,
}

/// A call of the last thread.
enum Call<T> {
    Take,
    Give(T),
}

/// From the first start to the last end.
fn whole(threads: &[ThreadWork]) -> Span {
    let start = threads.iter().map(|thread| thread.start).reduce(Moment::earlier);
    let end = threads.iter().map(|thread| thread.end).reduce(Moment::later);
    start.zip(end).map_or_else(|| Moment::now().until(Moment::now()), |(start, end)| start.until(end))
}

/// Receives what the others send, from all rings by turns, and frees it with what this thread has allocated
/// meanwhile, as many at once as the others hand over. Ends early if all senders are done, nothing is on its
/// way, and it gets no frame.
fn receive<T: Copy + Default>(
    rings: &mut [Consumer<T>],
    amount: Amount,
    senders_done: &AtomicUsize,
    meeting: &Meeting,
    mut call: impl FnMut(Call<T>) -> Option<T>,
) -> ThreadWork {
    let mut things = [T::default(); HANDED_OVER];
    meeting.wait();
    let start = Moment::now();
    let (mut freed, mut own, mut turns) = (0, 0, 0_u32);
    while freed < amount.all {
        // Read before the rings, which get nothing after it has reached their number.
        let last = senders_done.load(Ordering::Acquire) == rings.len();
        let before = freed;
        let wanted = HANDED_OVER.min(amount.own - own);
        let made =
            (0..wanted).take_while(|&at| call(Call::Take).map(|thing| things[at] = thing).is_some()).count();
        own += made;
        freed += made;
        for ring in &mut *rings {
            if let Ok(chunk) = ring.read_chunk(ring.slots()) {
                freed += chunk.len();
                chunk.into_iter().for_each(|thing| _ = call(Call::Give(thing)));
            }
        }
        things[..made].iter().for_each(|&thing| _ = call(Call::Give(thing)));
        if freed == before {
            if last {
                break;
            }
            pause(&mut turns);
        }
    }
    ThreadWork { start, end: Moment::now(), taken: freed as u64 }
}
