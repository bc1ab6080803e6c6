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
    // The other process waits at the end of this pipe until the recorder has closed its own events: the last
    // close is the long one.
    let Ok((gate, opened)) = pipe2(OFlag::O_CLOEXEC) else { return };
    let mut kept: Vec<u32> =
        events.iter().chain([&gate]).map(|event| event.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    // SAFETY: C2: the child calls `fork`, `close_range`, `read` and `_exit` alone, which allocate nothing and
    // take no lock, and never returns; so it does not matter which other threads this process has.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => {
            let _ = waitpid(child, Some(WaitPidFlag::__WALL));
        }
        Ok(ForkResult::Child) => {
            // The process that keeps the events is a child of one that ends at once, so that no recorder
            // waits for it. SAFETY: C2: the child has one thread, and its own child calls `close_range`,
            // `read` and `_exit` alone.
            if let Ok(ForkResult::Child) = unsafe { fork() } {
                close_others(&kept);
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
/// recorder.
fn close_others(kept: &[u32]) {
    let mut first = 0;
    for &event in kept.iter().chain(&[u32::MAX]) {
        if first < event {
            // SAFETY: C3: the call takes no memory, and this process uses none of these descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, event - 1, 0) };
        }
        first = event.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

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
        let times = [0; 3].map(|_| {
            let events = opened(of)?;
            let since = Instant::now();
            close(events);
            Some(since.elapsed())
        });
        sleeper.kill().and_then(|()| sleeper.wait()).ok()?;
        times.into_iter().min()?
    }

    #[test]
    fn the_recorder_does_not_wait_for_tracepoints() {
        let Some((here, left)) = timed(drop).zip(timed(leave)) else {
            eprintln!("no tracepoints for this user: not tested");
            return;
        };
        if here < Duration::from_millis(30) {
            eprintln!("this kernel waits {here:?} alone: not tested");
            return;
        }
        assert!(left < here / 2, "{left:?} of {here:?}");
    }

    #[test]
    fn pipes_end_with_the_recorder() {
        let (read, write) = nix::unistd::pipe().expect("a pipe");
        let (kept, _other) = nix::unistd::pipe().expect("a pipe");
        // The process of its own has a copy of `write`, and closes it.
        leave(vec![kept]);
        drop(write);
        assert_eq!(nix::unistd::read(&read, &mut [0]), Ok(0), "no process holds the other end");
    }
}
