//! Threads that take a lock for each change: the order of the locked sections is the order of the trace.

use super::*;

const MM: u64 = 0xffff_8880_0000_1000;
const THREADS: usize = 6;
const FIXED: u64 = 0x32;
const READ_WRITE: u32 = 3;

/// The progress of a thread in its call or fault.
#[derive(Clone, Copy)]
enum Step {
    Idle,
    Entered(Change),
    /// It has the lock and waits for faults under way in its range.
    Locked(Change),
    /// It has changed its pages.
    Changed(Change),
    Unlocked(Change),
    Faulting(u64),
}

/// A call on a range of pages.
#[derive(Clone, Copy)]
struct Change {
    call: Call,
    at: u64,
    len: u64,
    prot: u32,
    fails: bool,
}

impl Change {
    fn drawn(rng: &mut fastrand::Rng) -> Change {
        let call = [Call::Mmap, Call::Munmap, Call::Mprotect][rng.usize(..3)];
        let prot = [0, READ_WRITE][rng.usize(..2)];
        Change { call, at: 0x10 + rng.u64(..6), len: rng.u64(1..4), prot, fails: false }
    }

    fn args(&self) -> Vec<u64> {
        let Change { call, at, len, prot, .. } = *self;
        let mut args = vec![at * PAGE, len * PAGE];
        args.extend((call != Call::Munmap).then_some(u64::from(prot)));
        args.extend((call == Call::Mmap).then_some(FIXED));
        args
    }

    fn result(&self) -> u64 {
        match self.call {
            _ if self.fails => -12_i64 as u64,
            Call::Mmap => self.at * PAGE,
            _ => 0,
        }
    }

    /// Changes the pages; a protection stops at the first hole.
    fn apply(&mut self, pages: &mut [Option<u32>; 16]) {
        for page in &mut pages[self.at as usize - 0x10..(self.at + self.len) as usize - 0x10] {
            match self.call {
                Call::Munmap => *page = None,
                Call::Mprotect if page.is_none() => {
                    self.fails = true;
                    return;
                }
                _ => *page = Some(self.prot),
            }
        }
    }
}

/// A kernel with a lock, and threads that are delayed at every point.
struct Kernel {
    rng: fastrand::Rng,
    told: Told,
    pages: [Option<u32>; 16],
    /// Whether the thread that has the lock has changed its pages; `None` if none has it.
    held: Option<bool>,
    /// Calls as they happened, by thread and first argument.
    truth: Vec<(u32, u64)>,
}

impl Kernel {
    /// Makes one step of a thread; returns its next state.
    fn step(&mut self, tid: u32, step: Step, ends: bool) -> Step {
        match step {
            Step::Idle if ends => Step::Idle,
            Step::Idle if self.rng.bool() => {
                let addr = (0x10 + self.rng.u64(..9)) * PAGE;
                let fault = RawKind::Fault { addr, error_code: 6, kernel_mode: false };
                self.told.push(tid, fault);
                Step::Faulting(addr)
            }
            Step::Idle => {
                let change = Change::drawn(&mut self.rng);
                self.told.enter(tid, change.call, &change.args());
                Step::Entered(change)
            }
            Step::Entered(change) if self.held.is_none() => {
                self.held = Some(false);
                Step::Locked(change)
            }
            Step::Entered(_) => step,
            Step::Locked(mut change) => {
                change.apply(&mut self.pages);
                self.truth.push((tid, change.at * PAGE));
                self.held = Some(true);
                Step::Changed(change)
            }
            Step::Changed(change) => {
                self.held = None;
                if change.call == Call::Munmap {
                    // It downgrades to the lock for reading.
                    self.told.push(tid, RawKind::Locked { mm: MM });
                } else {
                    self.told.push(tid, RawKind::Unlocked { mm: MM });
                }
                Step::Unlocked(change)
            }
            Step::Unlocked(change) => {
                self.told.leave(tid, change.call, change.result());
                Step::Idle
            }
            Step::Faulting(addr) => {
                let page = self.pages[(addr / PAGE - 0x10) as usize];
                // A writer that has changed its pages keeps faults out of them until it releases the lock.
                if page == Some(READ_WRITE) && self.held != Some(true) {
                    self.told.push(tid, RawKind::Resolved { addr, major: false });
                }
                Step::Idle
            }
        }
    }
}

#[test]
fn calls_stand_as_they_had_the_lock() {
    for seed in 0..50 {
        let mut kernel = Kernel {
            rng: fastrand::Rng::with_seed(seed),
            told: Told::started(),
            pages: [None; 16],
            held: None,
            truth: Vec::new(),
        };
        let mut threads = [Step::Idle; THREADS];
        for step in 0.. {
            let number = kernel.rng.usize(..THREADS);
            threads[number] = kernel.step(number as u32 + 1, threads[number], step > 2000);
            if step > 2000 && threads.iter().all(|thread| matches!(thread, Step::Idle)) {
                break;
            }
        }
        let Kernel { told, truth, .. } = kernel;
        let mut layouts = Layouts::default();
        let mut seen = Vec::new();
        for event in told.trace() {
            match &event.kind {
                EventKind::Syscall(call) => {
                    assert!(!call.unordered, "seed {seed}: the lock proves its place: {event:x?}");
                    seen.push((event.tid, call.args[0]));
                }
                EventKind::Fault { addr, duration_ns: Some(_), .. } => {
                    let prot = layouts.find(PID, *addr).map(|mapping| mapping.prot);
                    assert_eq!(prot, Some(READ_WRITE), "seed {seed}: {event:x?}");
                }
                _ => {}
            }
            layouts.apply(&event);
        }
        assert_eq!(seen, truth, "seed {seed}");
    }
}

/// A lock for reading is the place of a discard and of a downgrade, and of no other call: a mapping populates its pages
/// under one, behind its section. What has no record of its lock beside another call is marked.
#[test]
fn a_lock_for_reading_is_a_place_where_it_is_a_downgrade() {
    const DONTNEED: u64 = 4;
    let places = |call: Call, args: [u64; 3], locks: &[RawKind]| {
        let mut told = Told::started();
        told.enter(2, Call::Munmap, &[0x20 * PAGE, PAGE]);
        told.enter(1, call, &args);
        let entry = told.raws.len() as u64;
        locks.iter().for_each(|lock| told.push(1, lock.clone()));
        told.leave(1, call, 0);
        told.leave(2, Call::Munmap, 0);
        let of_first = |event: &Event| event.tid == 1 && matches!(event.kind, EventKind::Syscall(_));
        let event = told.trace().into_iter().find(of_first).expect("the call");
        let EventKind::Syscall(call) = event.kind else { unreachable!("a call") };
        (event.time_ns as i64 - entry as i64, call.unordered)
    };
    let (reads, releases) = (RawKind::Locked { mm: MM }, RawKind::Unlocked { mm: MM });
    let args = [0x10 * PAGE, PAGE, DONTNEED];
    for call in [Call::Munmap, Call::Brk, Call::Mremap, Call::Madvise] {
        assert_eq!(places(call, args, std::slice::from_ref(&reads)), (0, false), "{call:?}");
        assert_eq!(places(call, args, &[]), (-1, true), "{call:?}");
    }
    for call in [Call::Mmap, Call::Mprotect, Call::Mlock, Call::Brk] {
        assert_eq!(places(call, args, &[releases.clone(), reads.clone()]), (0, false), "{call:?}");
    }
    for call in [Call::Mmap, Call::Mprotect, Call::Mlock] {
        assert_eq!(places(call, args, &[reads.clone(), releases.clone()]), (1, false), "{call:?}");
        assert_eq!(places(call, args, std::slice::from_ref(&reads)), (-1, true), "{call:?}");
    }
}
