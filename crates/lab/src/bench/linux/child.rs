//! Child processes for measurements: forked, told when to go on, asked for numbers, waited for.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::time::Instant;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, fork};

use crate::bench::experiment::Skip;

/// A child of this process. Dropping it waits for its end; it must not be waiting for a word then.
pub struct Child {
    pid: Pid,
    said: PipeReader,
    told: Option<PipeWriter>,
    over: bool,
    /// Nanoseconds that the `fork` took in the parent.
    pub forked: f64,
}

/// The child's end of the pipes to its parent.
pub struct Line {
    say: PipeWriter,
    told: PipeReader,
}

impl Line {
    /// Sends a number to the parent; whether it could.
    pub fn say(&mut self, number: u64) -> bool {
        self.say.write_all(&number.to_le_bytes()).is_ok()
    }

    /// Waits until the parent says to go on; whether it did.
    pub fn wait(&mut self) -> bool {
        self.told.read_exact(&mut [0]).is_ok()
    }
}

impl Child {
    /// Forks a child that does `work` and ends, with status 0 when that was true.
    ///
    /// # Errors
    /// [`Skip`] when the system refuses.
    ///
    /// # Safety
    /// This process has other threads, so `work` may do only what a signal handler may: system calls, and memory of its
    /// own. It allocates nothing and takes no lock.
    pub unsafe fn start(work: impl FnOnce(&mut Line) -> bool) -> Result<Self, Skip> {
        let pipe = || std::io::pipe().map_err(|error| Skip::because("cannot make a pipe to a child", error));
        let ((said, say), (heard, told)) = (pipe()?, pipe()?);
        let start = Instant::now();
        // SAFETY: C2: the child runs `work`, which keeps the caller's promise, and then ends.
        let forked = unsafe { fork() };
        let time = start.elapsed().as_nanos() as f64;
        match forked.map_err(|error| Skip::because("cannot fork", error))? {
            ForkResult::Child => {
                let end = End;
                // Closes the parent's ends; otherwise the child would not see that the parent closed them.
                drop((said, told));
                let done = work(&mut Line { say, told: heard });
                end.with(if done { 0 } else { 1 })
            }
            ForkResult::Parent { child } => {
                Ok(Self { pid: child, said, told: Some(told), over: false, forked: time })
            }
        }
    }

    /// The child's number, as `/proc` calls it.
    pub fn name(&self) -> String {
        self.pid.to_string()
    }

    /// Waits for the next number that the child says.
    ///
    /// # Errors
    /// [`Skip`] when it ended without one.
    pub fn hear(&mut self) -> Result<u64, Skip> {
        let mut number = [0; 8];
        let heard = self.said.read_exact(&mut number);
        heard.map_err(|error| Skip::because("a child ended before it was done", error))?;
        Ok(u64::from_le_bytes(number))
    }

    /// Lets the child go on.
    ///
    /// # Errors
    /// [`Skip`] when it does not listen.
    pub fn tell(&mut self) -> Result<(), Skip> {
        let told = self.told.as_mut().map_or(Ok(()), |told| told.write_all(&[1]));
        told.map_err(|error| Skip::because("a child does not listen", error))
    }

    /// Waits for the child's end; the moment after, as [`moment`].
    ///
    /// # Errors
    /// [`Skip`] when it did not do its work.
    pub fn end(&mut self) -> Result<u64, Skip> {
        self.over = true;
        let status =
            waitpid(self.pid, None).map_err(|error| Skip::because("cannot wait for a child", error))?;
        let moment = moment();
        match status {
            WaitStatus::Exited(_, 0) => Ok(moment),
            status => Err(Skip(format!("a child could not do its work: {status:?}"))),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A child that still waits for a word then sees the end of the pipe.
        self.told = None;
        if !self.over {
            // Its status is of no use: a failure was reported already.
            let _ = waitpid(self.pid, None);
        }
    }
}

/// Ends a child's process, also on a panic: no code of the parent may run in it.
struct End;

impl End {
    fn with(self, status: i32) -> ! {
        // SAFETY: C2: the child ends at once; nothing that it shares with its parent is flushed or dropped.
        unsafe { libc::_exit(status) }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        Self.with(2)
    }
}

/// Now, in nanoseconds of the clock that all processes share.
pub fn moment() -> u64 {
    // The call cannot fail for a clock that every Linux has; 0 would give obviously wrong times.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
