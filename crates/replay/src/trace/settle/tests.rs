use super::*;
use crate::trace::{Access, Call};

const A: u64 = 0x10_0000;
const PAGE: u64 = 4096;
const NONE: u64 = 0;
const READ_WRITE: u64 = 3;
const FIXED: u64 = 0x32;

/// A call of thread `tid` from `enter_ns` to `exit_ns`.
fn call(tid: u32, (enter_ns, exit_ns): (u64, u64), call: Call, args: &[u64], result: i64) -> Event {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let duration_ns = exit_ns - enter_ns;
    let call = Syscall { call, args: all, result, enter_ns, duration_ns, file: None, unordered: true };
    Event { time_ns: enter_ns, pid: 1, tid, kind: EventKind::Syscall(call) }
}

fn map(tid: u32, span: (u64, u64), prot: u64) -> Event {
    call(tid, span, Call::Mmap, &[A, PAGE, prot, FIXED], A as i64)
}

fn unmap(tid: u32, span: (u64, u64)) -> Event {
    call(tid, span, Call::Munmap, &[A, PAGE], 0)
}

fn protect(tid: u32, span: (u64, u64), prot: u64, result: i64) -> Event {
    call(tid, span, Call::Mprotect, &[A, PAGE, prot], result)
}

/// The same call with its place known.
fn ordered(mut event: Event) -> Event {
    if let EventKind::Syscall(call) = &mut event.kind {
        call.unordered = false;
    }
    event
}

/// A fault that was resolved.
fn fault(tid: u32, time_ns: u64) -> Event {
    let (access, protection, kernel_mode, major) = (Access::Write, false, false, false);
    let kind = EventKind::Fault { addr: A, access, protection, kernel_mode, major, duration_ns: Some(1) };
    Event { time_ns, pid: 1, tid, kind }
}

/// The threads in the found order, and whether each event is in doubt.
fn settled(events: Vec<Event>) -> Vec<(u32, bool)> {
    let mut settled = Settled::default();
    events.into_iter().for_each(|event| settled.push(event));
    settled.finish();
    std::iter::from_fn(|| settled.pop()).map(|placed| (placed.event.tid, placed.in_doubt)).collect()
}

fn sure(threads: &[u32]) -> Vec<(u32, bool)> {
    threads.iter().map(|tid| (*tid, false)).collect()
}

#[test]
fn what_is_known_stays_as_it_is() {
    let events =
        vec![ordered(map(1, (1, 2), READ_WRITE)), fault(2, 3), ordered(unmap(1, (4, 9))), fault(3, 5)];
    assert_eq!(
        settled(events),
        sure(&[1, 2, 1, 3]),
        "no order explains the last one, and none is looked for"
    );
}

#[test]
fn an_unmapping_stands_behind_the_faults_that_it_let_through() {
    let events = vec![ordered(map(1, (1, 2), READ_WRITE)), unmap(1, (3, 9)), fault(2, 4), fault(3, 5)];
    assert_eq!(settled(events), sure(&[1, 2, 3, 1]));
}

#[test]
fn a_protection_stands_before_the_faults_that_need_it() {
    let events = vec![ordered(map(1, (1, 2), NONE)), protect(1, (3, 9), READ_WRITE, 0), fault(2, 4)];
    assert_eq!(settled(events), sure(&[1, 1, 2]));
}

/// The order of two unmapping threads decides whether a third finds the mapping whose protection it changes.
#[test]
fn results_tell_the_order_of_calls() {
    let start = ordered(map(9, (1, 2), READ_WRITE));
    for (result, order) in [(0, [1, 2]), (-12, [2, 1])] {
        let events = vec![start.clone(), protect(1, (3, 9), NONE, result), unmap(2, (4, 8))];
        let found = settled(events);
        let calls: Vec<u32> = found.iter().map(|(tid, _)| *tid).filter(|tid| *tid < 9).collect();
        assert_eq!(calls, order, "result {result}");
        assert!(found.iter().all(|(_, in_doubt)| !in_doubt));
    }
}

/// Two mappings at one place: a fault long after both shows which one came last.
#[test]
fn a_later_event_tells_which_call_was_last() {
    for last in [1, 2] {
        let prot = |tid| if tid == last { READ_WRITE } else { NONE };
        let mut events = vec![map(1, (3, 9), prot(1)), map(2, (4, 8), prot(2))];
        events.extend((10..200).map(|time_ns| {
            let mut elsewhere = fault(3, time_ns);
            elsewhere.pid = 7;
            elsewhere
        }));
        events.push(fault(3, 300));
        let calls: Vec<u32> = settled(events).iter().map(|(tid, _)| *tid).filter(|tid| *tid != 3).collect();
        assert_eq!(calls, [3 - last, last]);
    }
}

/// The mapping may be before or after the unmapping until the last event shows it, long after the events
/// around it were released.
#[test]
fn a_call_that_finds_its_place_after_others_made_room_is_not_lost() {
    const ENOMEM: i64 = -12;
    let hole = |time_ns| ordered(protect(9, (time_ns, time_ns + 1), NONE, ENOMEM));
    let mut events = vec![ordered(map(9, (1, 2), READ_WRITE))];
    events.extend([map(1, (3, 1000), READ_WRITE), unmap(2, (4, 1000)), hole(5)]);
    let elsewhere = [A + 8 * PAGE, PAGE, 4];
    events.extend((100..300).map(|tid| call(tid, (tid.into(), 1500), Call::Madvise, &elsewhere, ENOMEM)));
    events.push(hole(2000));
    let (given, found) = (events.len(), settled(events));
    assert_eq!(found.len(), given);
    assert_eq!(found.last(), Some(&(9, true)), "what stood around it was given out");
}

#[test]
fn what_no_event_tells_is_in_doubt_until_it_is_mapped_anew() {
    let mut events = vec![map(1, (3, 9), READ_WRITE), map(2, (4, 8), NONE)];
    events.push(ordered(protect(3, (10, 11), READ_WRITE, 0)));
    let mut copy = ordered(map(3, (12, 13), READ_WRITE));
    events.push(Event {
        kind: EventKind::Fork { child_pid: 2, child_tid: 4, flags: 0, kind: crate::trace::ForkKind::Copy },
        ..copy.clone()
    });
    assert_eq!(settled(events.clone()).last(), Some(&(3, false)), "the protection has made both the same");
    events.remove(2);
    events.push(Event { time_ns: 14, ..fault(3, 14) });
    events.push(Event { pid: 2, tid: 4, ..fault(4, 15) });
    copy.time_ns = 16;
    events.push(copy);
    events.push(fault(3, 17));
    let found = settled(events);
    assert_eq!(found[3..], [(3, true), (4, true), (3, true), (3, false)]);
}

#[test]
fn what_a_call_populated_goes_with_it() {
    let populate = EventKind::Populate { start: A, len: PAGE, cause: crate::trace::PopulateCause::Mlock };
    let events = vec![
        ordered(map(1, (1, 2), READ_WRITE)),
        unmap(1, (3, 9)),
        Event { kind: populate, ..fault(1, 3) },
        fault(2, 4),
    ];
    assert_eq!(settled(events), sure(&[1, 2, 1, 1]));
}

/// Each subset of the calls is a state of its own.
#[test]
fn many_states_of_many_mappings_take_bounded_memory() {
    let mut settled = Settled::default();
    let page = |number: u64| A + 2 * number * PAGE;
    for number in 0..2 * window::MOST_MAPPINGS as u64 / 512 {
        settled.push(ordered(call(
            9,
            (1, 2),
            Call::Mmap,
            &[page(number), PAGE, 3, FIXED],
            page(number) as i64,
        )));
    }
    for number in 0..10 {
        settled.push(call(number as u32, (3, 900), Call::Munmap, &[page(number), PAGE], 0));
    }
    let hole = [A, 32 * PAGE, NONE];
    settled.push(ordered(call(10, (4, 5), Call::Mprotect, &hole, -12)));
    let mappings: usize = settled.windows.values().map(Window::mappings).sum();
    assert!((1..=window::MOST_MAPPINGS).contains(&mappings), "{mappings}");
}

/// Threads that change the same pages, with a kernel that does each call at one moment of its span.
mod drawn {
    use super::*;
    use crate::trace::layout::Space;

    const THREADS: u32 = 5;
    const LAST_NS: u64 = 600;
    const ENOMEM: i64 = -12;

    fn draw(rng: &mut fastrand::Rng, tid: u32, enter_ns: u64) -> Event {
        let (at, len) = (A + rng.u64(..6) * PAGE, rng.u64(1..=3) * PAGE);
        let prot = [NONE, READ_WRITE][rng.usize(..2)];
        let span = (enter_ns, u64::MAX);
        match rng.u8(..4) {
            0 => call(tid, span, Call::Mmap, &[at, len, prot, FIXED], at as i64),
            1 => call(tid, span, Call::Munmap, &[at, len], 0),
            2 => call(tid, span, Call::Mprotect, &[at, len, prot], 0),
            _ => call(tid, span, Call::Madvise, &[at, len, 4], 0),
        }
    }

    fn with_call(mut event: Event, change: impl Fn(&mut Syscall)) -> Event {
        if let EventKind::Syscall(call) = &mut event.kind {
            change(call);
        }
        event
    }

    /// Makes a call; returns it with its result.
    fn done(space: &mut Space, event: Event) -> Event {
        let fits = space.fits(&event.kind);
        let event = with_call(event, |call| call.result = if fits { call.result } else { ENOMEM });
        space.apply(&event.kind);
        event
    }

    /// The recording of the threads: each call from entry to exit, each fault at its resolution.
    fn recorded(seed: u64) -> Vec<Event> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut space = Space::default();
        // First entered and not done, then done and not returned.
        let mut inside: Vec<(Event, bool)> = Vec::new();
        let mut events = Vec::new();
        for now in 1..LAST_NS {
            let tid = rng.u32(1..=THREADS);
            match inside.iter().position(|(event, _)| event.tid == tid) {
                None if rng.bool() => {
                    let touched = Event { tid, ..fault(tid, now) };
                    let addr = A + rng.u64(..8) * PAGE;
                    let kind = match touched.kind {
                        EventKind::Fault { access, protection, kernel_mode, major, duration_ns, .. } => {
                            EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns }
                        }
                        other => other,
                    };
                    events.extend(space.fits(&kind).then_some(Event { kind, ..touched }));
                }
                None => inside.push((draw(&mut rng, tid, now), false)),
                Some(at) if !inside[at].1 => {
                    let (event, _) = inside[at].clone();
                    inside[at] = (done(&mut space, event), true);
                }
                Some(at) => {
                    let (event, _) = inside.swap_remove(at);
                    let ended = |call: &mut Syscall| call.duration_ns = now - call.enter_ns;
                    events.push(with_call(event, ended));
                }
            }
        }
        // A call that took effect counts, even if it has not returned yet.
        let done = inside.into_iter().filter(|(_, done)| *done);
        let ended = |call: &mut Syscall| call.duration_ns = LAST_NS - call.enter_ns;
        events.extend(done.map(|(event, _)| with_call(event, ended)));
        events.sort_by_key(|event| event.time_ns);
        events
    }

    #[test]
    fn the_order_that_is_found_explains_every_event() {
        let mut judged = 0;
        for seed in 0..200 {
            let mut settled = Settled::default();
            recorded(seed).into_iter().for_each(|event| settled.push(event));
            settled.finish();
            let mut space = Space::default();
            let mut last_ns = 0;
            while let Some(placed) = settled.pop() {
                let Event { time_ns, kind, .. } = &placed.event;
                assert!(*time_ns >= last_ns, "seed {seed}");
                last_ns = *time_ns;
                if let EventKind::Syscall(call) = kind {
                    let exit_ns = call.enter_ns + call.duration_ns;
                    assert!((call.enter_ns..=exit_ns).contains(time_ns), "seed {seed}: {placed:?}");
                }
                assert!(placed.in_doubt || space.fits(kind), "seed {seed}: {placed:x?}");
                judged += u64::from(!placed.in_doubt);
                space.apply(kind);
            }
        }
        assert!(judged > 19_000, "{judged} events are not in doubt");
    }
}
