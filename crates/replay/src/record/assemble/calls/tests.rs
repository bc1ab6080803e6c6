use super::*;
use crate::record::assemble::tests;
use crate::record::raw::{Raw, RawKind};
use crate::trace::{Event, Layouts, Placed, Settled, clone_flags};
use std::ops::Range;

const PID: u32 = 1;
const PAGE: u64 = 4096;
const MREMAP_MAYMOVE: u64 = 1;

/// The kernel's records of one process, one nanosecond apart.
#[derive(Default)]
struct Told {
    raws: Vec<Raw>,
}

impl Told {
    fn started() -> Told {
        let mut told = Told::default();
        told.push(PID, RawKind::Comm { exec: true, name: "threads".into() });
        told
    }

    fn push(&mut self, tid: u32, kind: RawKind) {
        if tid != PID && self.raws.iter().all(|raw| raw.tid != tid) {
            self.tell(PID, RawKind::Fork { child_pid: PID, child_tid: tid });
            self.tell(PID, RawKind::NewTask { flags: clone_flags::VM | clone_flags::THREAD });
        }
        self.tell(tid, kind);
    }

    fn tell(&mut self, tid: u32, kind: RawKind) {
        self.raws.push(Raw { time_ns: self.raws.len() as u64, pid: PID, tid, kind });
    }

    fn enter(&mut self, tid: u32, call: Call, args: &[u64]) {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        self.push(tid, RawKind::Enter { number: call.x86_64(), call, args: all });
    }

    fn leave(&mut self, tid: u32, call: Call, result: u64) {
        self.push(tid, RawKind::Leave { number: call.x86_64(), result: result as i64 });
    }

    /// A thread enters a call that moves a page.
    fn enter_move(&mut self, tid: u32, from: u64) {
        self.enter(tid, Call::Mremap, &[from, PAGE, PAGE, MREMAP_MAYMOVE]);
    }

    fn leave_move(&mut self, tid: u32, to: u64) {
        self.leave(tid, Call::Mremap, to);
    }

    fn map(&mut self, tid: u32, at: u64) {
        self.enter(tid, Call::Mmap, &[0, PAGE]);
        self.leave(tid, Call::Mmap, at);
    }

    /// The resulting trace.
    fn trace(self) -> Vec<Event> {
        tests::trace(|assembler| {
            self.raws.into_iter().for_each(|raw| assembler.push(raw));
            u64::MAX
        })
    }

    /// The calls of the resulting trace in order, as thread and result.
    ///
    /// # Panics
    /// If the kernel gives one of them an address that is mapped.
    fn recorded(self) -> Vec<(u32, u64)> {
        let mut settled = Settled::default();
        self.trace().into_iter().for_each(|event| settled.push(event));
        settled.finish();
        let mut layouts = Layouts::default();
        let mut calls = Vec::new();
        while let Some(Placed { event, in_doubt, .. }) = settled.pop() {
            if let EventKind::Syscall(call) = &event.kind {
                // If all threads are inside calls all the time, more may be mapped than the test can follow.
                if let Some(given) = target(call).filter(|_| !in_doubt) {
                    let taken =
                        layouts.mappings(PID).find(|taken| overlap(&(taken.start..taken.end), &given));
                    assert_eq!(taken, None, "{event:x?} is given what is mapped, after {calls:x?}");
                }
                calls.push((event.tid, call.result as u64));
            }
            layouts.apply(&event);
        }
        calls
    }
}

/// The addresses that the kernel gave a call.
fn target(call: &Syscall) -> Option<Range<u64>> {
    let length = match call.call {
        Call::Mmap => call.args[1],
        Call::Mremap => call.args[2],
        _ => return None,
    };
    let start = call.result as u64;
    Some(start..start.saturating_add(length))
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Three threads move pages one after the other, each to the source of the one before, and return in another
/// order.
#[test]
fn moves_into_each_others_sources_stand_as_they_were_done() {
    let [p, q, r, s] = [0x10, 0x11, 0x12, 0x13].map(|page| page * PAGE);
    let done = [(1, s), (2, p), (3, q)];
    for returned in [[1, 2, 3], [1, 3, 2], [2, 1, 3], [2, 3, 1], [3, 1, 2], [3, 2, 1]] {
        let mut told = Told::started();
        for (tid, at) in [(1, p), (2, q), (3, r)] {
            told.map(tid, at);
        }
        for (tid, at) in [(1, p), (2, q), (3, r)] {
            told.enter_move(tid, at);
        }
        for tid in returned {
            told.leave_move(tid, done[tid as usize - 1].1);
        }
        assert_eq!(told.recorded()[3..], done, "returned as {returned:?}");
    }
}

/// The state of a thread of the random program.
#[derive(Clone, Copy)]
enum At {
    Idle(Option<u64>),
    Entered(Call, Option<u64>),
    Done(Call, u64),
}

/// A kernel that reuses the last released address first, and threads that are delayed at every point.
#[test]
fn what_threads_are_given_was_released_before() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut free = Vec::from_iter((0x10..0x18).map(|page| page * PAGE));
        let mut threads = [At::Idle(None); 6];
        let mut told = Told::started();
        let mut returned = 0;
        for step in 0.. {
            let number = rng.usize(..threads.len());
            let tid = number as u32 + 1;
            threads[number] = match threads[number] {
                At::Idle(_) if step > 3000 => {
                    if threads.iter().all(|thread| matches!(thread, At::Idle(_))) {
                        break;
                    }
                    continue;
                }
                At::Idle(None) => {
                    told.enter(tid, Call::Mmap, &[0, PAGE]);
                    At::Entered(Call::Mmap, None)
                }
                At::Idle(Some(page)) if rng.u8(..4) == 0 => {
                    told.enter(tid, Call::Munmap, &[page, PAGE]);
                    At::Entered(Call::Munmap, Some(page))
                }
                At::Idle(Some(page)) => {
                    told.enter_move(tid, page);
                    At::Entered(Call::Mremap, Some(page))
                }
                At::Entered(call, from) => {
                    let to =
                        if call == Call::Munmap { 0 } else { free.pop().expect("more pages than threads") };
                    free.extend(from);
                    At::Done(call, to)
                }
                At::Done(call, to) => {
                    told.leave(tid, call, to);
                    returned += 1;
                    At::Idle((call != Call::Munmap).then_some(to))
                }
            };
        }
        assert_eq!(told.recorded().len(), returned, "seed {seed}");
    }
}

mod locked;
mod truncate;
