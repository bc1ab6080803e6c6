//! The running kernel's heap, in a child process, because this process's `malloc` owns the end of its heap.

use std::io::{Read, Write};
use std::time::Instant;

use nix::sys::prctl;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::Heap;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;

pub(super) struct Linux;

impl Arm<Heap> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "brk and a write to each absent page, in a forked child without transparent huge pages: system call, \
         trap, clearing, cgroup charge, reverse map, LRU, entries, flush."
    }

    fn setup(&mut self, case: &Heap) -> Result<Box<dyn Prepared + '_>, Skip> {
        Ok(Box::new(Ready { case: *case }))
    }
}

struct Ready {
    case: Heap,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (mut reader, mut writer) =
            std::io::pipe().map_err(|error| Skip::because("cannot make a pipe to the child", error))?;
        // SAFETY: C2: this process has other threads; `child` makes system calls, writes to pages of its own and
        // to the pipe, allocates nothing, and never returns.
        match unsafe { fork() }.map_err(|error| Skip::because("cannot fork", error))? {
            ForkResult::Child => child(&self.case, &mut writer),
            ForkResult::Parent { child } => {
                drop(writer);
                let mut report = [0; 16];
                let read = reader.read_exact(&mut report);
                let status = waitpid(child, None).map_err(|error| Skip::because("cannot wait", error))?;
                if status != WaitStatus::Exited(child, 0) || read.is_err() {
                    return Err(Skip(format!(
                        "the kernel refused brk, or the child was stopped: {status:?}"
                    )));
                }
                let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| report[at + byte]));
                Ok(self.case.sample(word(0) as f64, word(8)))
            }
        }
    }
}

/// Runs the loops and reports nanoseconds and operations; every path ends in `_exit`.
fn child(case: &Heap, report: &mut impl Write) -> ! {
    let _ = prctl::set_thp_disable(true);
    let start = brk(0).next_multiple_of(PAGE);
    // One untimed loop, so that page tables exist as in every later one.
    let mut done = once(case, start).map(|_| 0);
    let clock = Instant::now();
    for _ in 0..case.loops {
        done = done.and_then(|done| Some(done + once(case, start)?));
    }
    let time = clock.elapsed().as_nanos() as u64;
    let written = done.is_some_and(|done: u64| {
        report.write_all(&time.to_le_bytes()).and_then(|()| report.write_all(&done.to_le_bytes())).is_ok()
    });
    // SAFETY: C2: the child ends at once; nothing that it shares with its parent is flushed or dropped.
    unsafe { libc::_exit(if written { 0 } else { 1 }) }
}

/// One loop; returns the operations done.
fn once(case: &Heap, start: usize) -> Option<u64> {
    let mut done = 0;
    for end in (0..=case.bytes).step_by(case.step).skip(1) {
        move_end(start + end)?;
        if !case.touch {
            done += 1;
            continue;
        }
        for at in (end - case.step..end).step_by(PAGE) {
            let byte = (start + at) as *mut u8;
            // SAFETY: C1: the page lies in the heap that was just grown, above the old end; nothing else in
            // this process uses the heap any more.
            unsafe { byte.write_volatile(1) };
            done += 1;
        }
    }
    if case.touch {
        move_end(start)?;
    } else {
        for end in (0..case.bytes).step_by(case.step).rev() {
            move_end(start + end)?;
            done += 1;
        }
    }
    Some(done)
}

fn move_end(end: usize) -> Option<()> {
    (brk(end) == end).then_some(())
}

/// Asks the kernel to end the heap at `end`; returns where it ends.
fn brk(end: usize) -> usize {
    // SAFETY: C1: the end only moves above the one that the parent's `malloc` knew, and back to it, so
    // `malloc` keeps its memory.
    unsafe { libc::syscall(libc::SYS_brk, end) as usize }
}
