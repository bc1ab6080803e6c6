//! A child process that makes system calls, loads and stores as it is told: the subject that hostile arguments are
//! given to. It has the mappings of this program too, which no call may reach.

mod access;
mod serve;

use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Processes at a time.
pub(crate) const SLOTS: usize = 8;

/// How long a call may take before the child counts as hung.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a child is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Order {
    /// The system call `words[0]` with the arguments behind it.
    Call,
    /// A process of its own that serves slot `words[0]`.
    Fork,
    /// Loads from `words[0]`.
    Load,
    /// Stores `words[1]` to `words[0]`.
    Store,
    /// An access to `words[0]` that needs the right to store and changes nothing.
    Touch,
}

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const DONE: u32 = 2;

/// Where one process finds its orders and leaves its answers.
#[repr(C, align(4096))]
struct Slot {
    state: AtomicU32,
    order: AtomicU32,
    words: [AtomicU64; 7],
    answer: AtomicU64,
    /// Zero, or the signal that an access raised and its code: `signal << 8 | code`.
    signal: AtomicU64,
}

/// Memory that this process shares with its children.
struct Shared {
    slots: *mut Slot,
}

impl Shared {
    fn new() -> Self {
        let (rw, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let slots = unsafe { libc::mmap(std::ptr::null_mut(), SLOTS * size_of::<Slot>(), rw, flags, -1, 0) };
        assert_ne!(slots, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self { slots: slots.cast() }
    }

    fn slot(&self, number: usize) -> &Slot {
        assert!(number < SLOTS);
        // SAFETY: the mapping holds so many slots as long as `self` lives; zeroes are a valid slot, and all fields are
        // atomics.
        unsafe { &*self.slots.add(number) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: made by `new`; no reference to a slot outlives `self`.
        unsafe { libc::munmap(self.slots.cast(), SLOTS * size_of::<Slot>()) };
    }
}

/// A child; it is killed when this is dropped.
pub(crate) struct Child {
    shared: Rc<Shared>,
    slot: usize,
    pid: libc::pid_t,
}

impl Child {
    /// A child of this process, in slot 0. Files that are open now are open there under the same numbers.
    pub(crate) fn spawn() -> Self {
        let shared = Rc::new(Shared::new());
        // SAFETY: `serve` calls nothing but system calls and code without allocation or locks, as the only thread of a
        // copy of a process with threads must.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
        if pid == 0 {
            serve::serve(shared.slots, 0);
        }
        Self { shared, slot: 0, pid }
    }

    /// A copy of the child in a process of its own, which serves `slot`.
    pub(crate) fn fork(&self, slot: usize) -> io::Result<Self> {
        self.shared.slot(slot).state.store(IDLE, Ordering::SeqCst);
        let pid = self.ask(Order::Fork, &[slot as u64])? as libc::pid_t;
        Ok(Self { shared: Rc::clone(&self.shared), slot, pid })
    }

    /// Which slot it serves.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Its number.
    pub(crate) fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// A system call; what it returns.
    ///
    /// # Errors
    /// Its errno.
    pub(crate) fn call(&self, number: libc::c_long, args: &[u64]) -> io::Result<u64> {
        let mut words = [0; 7];
        words[0] = number as u64;
        words[1..=args.len()].copy_from_slice(args);
        self.ask(Order::Call, &words)
    }

    /// Sets a limit of the child's.
    ///
    /// # Errors
    /// `EPERM` when the limit may not be raised.
    pub(crate) fn limit(&self, resource: u32, bytes: u64) -> io::Result<()> {
        let both = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: reads one limit, and writes none.
        match unsafe { libc::prlimit(self.pid, resource, &both, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A load, a store or a touch.
    ///
    /// # Errors
    /// The signal that it raised, and the signal's code.
    pub(crate) fn access(&self, order: Order, addr: u64, word: u64) -> Result<u64, (i32, i32)> {
        let answer = self.ask(order, &[addr, word]).expect("an access has no errno");
        match self.shared.slot(self.slot).signal.load(Ordering::SeqCst) {
            0 => Ok(answer),
            signal => Err(((signal >> 8) as i32, (signal & 0xff) as i32)),
        }
    }

    fn ask(&self, order: Order, words: &[u64]) -> io::Result<u64> {
        let slot = self.shared.slot(self.slot);
        slot.words.iter().zip(words).for_each(|(to, &from)| to.store(from, Ordering::Relaxed));
        slot.order.store(order as u32, Ordering::Relaxed);
        slot.signal.store(0, Ordering::Relaxed);
        slot.state.store(ASKED, Ordering::SeqCst);
        wake(&slot.state);
        let start = Instant::now();
        while slot.state.load(Ordering::SeqCst) != DONE {
            wait(&slot.state, ASKED, Duration::from_millis(500));
            assert!(self.is_alive(), "the child died in {order:?} {words:x?}");
            assert!(start.elapsed() < PATIENCE, "the child hangs in {order:?} {words:x?}");
        }
        let answer = slot.answer.load(Ordering::SeqCst) as i64;
        // As the kernel tells them apart: the last page of numbers are errors.
        if order == Order::Call || order == Order::Fork {
            return if (-4095..0).contains(&answer) {
                Err(io::Error::from_raw_os_error(-answer as i32))
            } else {
                Ok(answer as u64)
            };
        }
        Ok(answer as u64)
    }

    fn is_alive(&self) -> bool {
        // SAFETY: asks whether the child has ended, and leaves it to be waited for.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.pid as libc::id_t, &mut info, flags) == 0 && info.si_pid() == 0
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this process that was not waited for yet, so that the number is its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Sleeps until `word` is not `value` any more, or somewhat longer than `time`.
fn wait(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    // SAFETY: the word and the time outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const time) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// A file of memory that children have too, of no name and no bytes.
pub(crate) fn memfd() -> std::fs::File {
    use std::os::fd::FromRawFd;
    // SAFETY: the name is a C string; the descriptor is new and owned by the file.
    unsafe {
        let fd: RawFd = libc::memfd_create(c"oracle".as_ptr(), 0);
        assert!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
        std::fs::File::from_raw_fd(fd)
    }
}
