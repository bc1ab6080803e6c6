//! Reports from the tracer process to the recorder: of one size, through a pipe, each written by one call.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::unistd::Pid;

use super::raw::{Raw, RawKind};
use crate::trace::Call;

/// Words of a report: its kind, a time, a thread, a number and up to six more.
const WORDS: usize = 10;
const BYTES: usize = WORDS * 8;

/// Bytes of one read.
const BUFFER: usize = 512 * BYTES;

/// One report of the tracer.
#[derive(Clone, Debug)]
pub(super) enum Report {
    /// The program waits at its gate and is traced.
    Ready(Pid),
    /// It cannot be traced.
    Refused(Errno),
    /// A call, or the flags of a new task.
    Raw(Raw),
    /// A process started a program whose privilege the kernel withheld, as from all traced programs.
    Unprivileged {
        /// The program's name as the kernel keeps it, at most 15 bytes.
        name: [u8; 16],
    },
    /// The program itself has ended; faults of all that ended so far.
    Ended { exit_code: u8, faults: u64 },
    /// The last of its descendants has ended.
    AllEnded { faults: u64 },
}

impl Report {
    fn words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        match self {
            Report::Ready(pid) => words[..2].copy_from_slice(&[0, pid.as_raw() as u64]),
            Report::Refused(errno) => words[..2].copy_from_slice(&[1, *errno as u64]),
            Report::Ended { exit_code, faults } => {
                words[..3].copy_from_slice(&[2, u64::from(*exit_code), *faults]);
            }
            Report::AllEnded { faults } => words[..2].copy_from_slice(&[3, *faults]),
            Report::Unprivileged { name } => {
                let (first, second) = (u128::from_le_bytes(*name) as u64, u128::from_le_bytes(*name) >> 64);
                words[..3].copy_from_slice(&[4, first, second as u64]);
            }
            Report::Raw(Raw { time_ns, tid, kind, .. }) => {
                words[1..3].copy_from_slice(&[*time_ns, u64::from(*tid)]);
                match kind {
                    RawKind::Enter { number, call, args } => {
                        words[0] = 5 | u64::from(call.code()) << 8;
                        words[3] = *number;
                        words[4..].copy_from_slice(args);
                    }
                    RawKind::Leave { number, result } => {
                        words[0] = 6;
                        words[3..5].copy_from_slice(&[*number, *result as u64]);
                    }
                    RawKind::NewTask { flags } => {
                        words[0] = 7;
                        words[3] = *flags;
                    }
                    RawKind::Dropped { device, inode } => {
                        words[0] = 8;
                        words[3..5].copy_from_slice(&[*device, *inode]);
                    }
                    other => unreachable!("a tracer does not see {other:?}"),
                }
            }
        }
        words
    }

    fn from_words(words: [u64; WORDS]) -> Option<Report> {
        let raw = |kind| {
            Some(Report::Raw(Raw { time_ns: words[1], pid: 0, tid: u32::try_from(words[2]).ok()?, kind }))
        };
        match words[0] & 0xff {
            0 => Some(Report::Ready(Pid::from_raw(i32::try_from(words[1]).ok()?))),
            1 => Some(Report::Refused(Errno::from_raw(i32::try_from(words[1]).ok()?))),
            2 => Some(Report::Ended { exit_code: u8::try_from(words[1]).ok()?, faults: words[2] }),
            3 => Some(Report::AllEnded { faults: words[1] }),
            4 => {
                let name = u128::from(words[1]) | u128::from(words[2]) << 64;
                Some(Report::Unprivileged { name: name.to_le_bytes() })
            }
            5 => {
                let call = Call::from_code(u8::try_from(words[0] >> 8).ok()?)?;
                let args = words[4..].try_into().ok()?;
                raw(RawKind::Enter { number: words[3], call, args })
            }
            6 => raw(RawKind::Leave { number: words[3], result: words[4] as i64 }),
            7 => raw(RawKind::NewTask { flags: words[3] }),
            8 => raw(RawKind::Dropped { device: words[3], inode: words[4] }),
            _ => None,
        }
    }
}

/// The tracer's end.
pub(super) struct Reporter {
    /// `None` once the recorder has ended.
    pipe: Option<File>,
}

impl Reporter {
    pub(super) fn new(pipe: OwnedFd) -> Reporter {
        Reporter { pipe: Some(pipe.into()) }
    }

    /// Whether the recorder still listens, as far as the last report showed.
    pub(super) fn is_heard(&self) -> bool {
        self.pipe.is_some()
    }

    pub(super) fn tell(&mut self, report: &Report) {
        let bytes: Vec<u8> = report.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        // Less than PIPE_BUF: written whole.
        if self.pipe.as_mut().is_some_and(|pipe| pipe.write_all(&bytes).is_err()) {
            self.pipe = None;
        }
    }
}

/// The recorder's end.
pub(super) struct Listener {
    pipe: File,
    buffer: Box<[u8; BUFFER]>,
    /// Bytes at the start of the buffer that are not a whole report yet.
    filled: usize,
}

impl Listener {
    pub(super) fn new(pipe: OwnedFd) -> Listener {
        Listener { pipe: pipe.into(), buffer: Box::new([0; BUFFER]), filled: 0 }
    }

    /// Waits for reports and calls `each` with them; false once the tracer has ended.
    ///
    /// # Errors
    /// The pipe's, and `InvalidData` for a report that no tracer writes.
    pub(super) fn listen(&mut self, mut each: impl FnMut(Report)) -> io::Result<bool> {
        let read = self.pipe.read(&mut self.buffer[self.filled..])?;
        self.filled += read;
        let whole = self.filled / BYTES * BYTES;
        for report in self.buffer[..whole].chunks_exact(BYTES) {
            let mut words = [0; WORDS];
            for (word, bytes) in words.iter_mut().zip(report.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            each(Report::from_words(words).ok_or(io::ErrorKind::InvalidData)?);
        }
        self.buffer.copy_within(whole..self.filled, 0);
        self.filled -= whole;
        Ok(read > 0)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests;
