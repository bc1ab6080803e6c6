//! Closes the events of a recording in a process of its own, so that the recorder does not wait for it.
//!
//! Where the last event of a tracepoint is closed, the kernel waits until no CPU can be inside of the
//! tracepoint: tens of milliseconds for each, one after the other, 0.3 s for a recording. The waits take no
//! processor time.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, fork, pipe2, read};

/// Leaves the last close of these events to a process that is no child of this one. Without such a process
/// they are closed here.
pub(super) fn leave(events: Vec<OwnedFd>) {
    leave_by(events, close_others);
}

/// As [`leave`]; `close_others` closes all but these in the other process, or says that it cannot.
fn leave_by(events: Vec<OwnedFd>, close_others: fn(&[u32]) -> bool) {
    // The other process waits at the end of this pipe until the recorder has closed its own events: the last
    // close is the long one.
    let Ok((gate, opened)) = pipe2(OFlag::O_CLOEXEC) else { return };
    let mut kept: Vec<u32> =
        events.iter().chain([&gate]).map(|event| event.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    // SAFETY: C2: the child calls `fork`, `close_range`, `read` and `_exit` alone, and never returns. They allocate
    // nothing, and the locks that `fork` takes are free again in the child; so it does not matter which
    // other threads this process has.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => {
            let _ = waitpid(child, Some(WaitPidFlag::__WALL));
        }
        Ok(ForkResult::Child) => {
            // The process that keeps the events is a child of one that ends at once, so that no recorder
            // waits for it. SAFETY: C2: the child has one thread, and its own child calls `close_range`,
            // `read` and `_exit` alone.
            if let Ok(ForkResult::Child) = unsafe { fork() }
                && close_others(&kept)
            {
                let _ = read(&gate, &mut [0]);
            }
            // SAFETY: C2: the child ends without running the exit handlers of its parent. The kernel closes
            // the events.
            unsafe { libc::_exit(0) }
        }
        Err(_) => {}
    }
    drop(events);
    drop(opened);
}

/// Closes all descriptors but these, which ascend: pipes that a reader waits for, and locks, end with the
/// recorder. The kernel may lack the call (before Linux 5.9) or refuse it: a process that keeps its end of the
/// gate would wait for itself, so it must end then.
fn close_others(kept: &[u32]) -> bool {
    let mut first = 0;
    for &event in kept.iter().chain(&[u32::MAX]) {
        if first < event {
            // SAFETY: C3: the call takes no memory, and this process uses none of these descriptors any more.
            if unsafe { libc::syscall(libc::SYS_close_range, first, event - 1, 0) } != 0 {
                return false;
            }
        }
        first = event.saturating_add(1);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use nix::poll::{PollFd, PollFlags, poll};

    use super::super::perf::{self, Config, Followed, Source, Wanted};
    use super::super::tracefs::Tracefs;
    use super::*;

    /// Tracepoints of which no other program here has events.
    const TRACEPOINTS: [&str; 4] = [
        "filemap/mm_filemap_add_to_page_cache",
        "kmem/mm_page_alloc_extfrag",
        "task/task_rename",
        "workqueue/workqueue_activate_work",
    ];

    /// Events of another process: a process that is forked gets those of its maker.
    fn opened(of: i32) -> Option<Vec<OwnedFd>> {
        let tracefs = Tracefs::find().ok()?;
        let wanted = |name| {
            let id = tracefs.tracepoint(name).ok()?.id;
            Some(Wanted {
                source: Source::Dropped,
                config: Config::Tracepoint { id, filter: None },
                what: "a test",
            })
        };
        let wanted: Vec<Wanted> = TRACEPOINTS.iter().copied().filter_map(wanted).collect();
        let mut events = perf::rings(true, Some(64 << 10), 64 << 10).ok()?;
        events.follow(&wanted, Followed::Thread(of), true).ok()?;
        (!wanted.is_empty()).then(|| events.into_descriptors())
    }

    fn timed(close: impl Fn(Vec<OwnedFd>)) -> Option<Duration> {
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().ok()?;
        let of = sleeper.id().cast_signed();
        let events = opened(of);
        let since = Instant::now();
        let took = events.map(|events| {
            close(events);
            since.elapsed()
        });
        sleeper.kill().and_then(|()| sleeper.wait()).ok()?;
        took
    }

    /// On a busy machine the forks of one try may wait longer than the kernel for its tracepoints.
    #[test]
    fn the_recorder_does_not_wait_for_tracepoints() {
        let mut least = None;
        for _ in 0..10 {
            let Some((here, left)) = timed(drop).zip(timed(leave)) else {
                eprintln!("no tracepoints for this user: not tested");
                return;
            };
            let before = least.unwrap_or((here, left));
            let (here, left) = (here.min(before.0), left.min(before.1));
            // Each is the least of all tries: one draw that is twice another does not pass.
            if left < here / 2 {
                return;
            }
            least = Some((here, left));
        }
        let (here, left) = least.expect("ten tries");
        if here < Duration::from_millis(30) {
            eprintln!("this kernel waits {here:?} alone: not tested");
            return;
        }
        panic!("closed here {here:?}, and left {left:?}");
    }

    /// Also where the other process cannot close what it has no use for.
    #[test]
    fn pipes_end_with_the_recorder() {
        let pipe = || pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        for close_others in [close_others, |_: &[u32]| false] {
            let ((end, write), (kept, _other)) = (pipe(), pipe());
            // The process of its own has a copy of `write`, and closes it.
            leave_by(vec![kept], close_others);
            drop(write);
            let mut waits = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut waits, 60_000_u16), Ok(1), "a process holds the other end");
            assert_eq!(read(&end, &mut [0]), Ok(0));
        }
    }
}
