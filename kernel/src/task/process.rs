//! A process: tasks that share an address space, files and signal handlers.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use spin::Once;

use super::barriers::Registrations;
use super::coredump::Dump;
use super::credentials::Credentials;
use super::group::{self, ControlGroup};
use super::limits::Limits;
use super::signal::shared::SharedSignals;
use super::thread::Task;
use super::wait::WaitQueue;
use crate::files::claim::Claim;
use crate::files::context::FsContext;
use crate::files::events::Waiters;
use crate::files::table::FileTable;
use crate::memory::list::ReservedList;
use crate::memory::manager::Space;
use crate::observe::Account;
use crate::sync::Mutex;

/// In a status word: there is a core dump.
const DUMPED: u32 = 0x80;

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// By `exit(2)` with this status.
    Exited(u8),
    /// By this signal.
    Killed(u32),
    /// By this signal, with a core dump.
    Dumped(u32),
}

impl Exit {
    /// The status word of `wait4(2)`.
    pub fn wait_status(self) -> u32 {
        match self {
            Self::Exited(status) => u32::from(status) << 8,
            Self::Killed(signal) => signal,
            Self::Dumped(signal) => signal | DUMPED,
        }
    }
}

/// A change of a child that its parent has not asked about yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobEvent {
    /// Stopped by this signal.
    Stopped(u32),
    /// Runs again.
    Continued,
}

/// A name: at most 15 bytes and a zero (`PR_SET_NAME`).
pub type Name = [u8; 16];

/// What `/proc` and `prctl` say of a program.
#[derive(Clone, Default)]
pub struct Identity {
    /// The name of its first thread.
    pub name: Name,
    /// The path of the program's file.
    pub executable: Vec<u8>,
    /// That file is in use, while the process has memory.
    pub claim: Option<Claim>,
}

/// A process.
pub struct Process {
    /// Its number.
    pub id: u32,
    /// The process that waits for it. Empty for the first one.
    pub parent: Mutex<Weak<Process>>,
    /// Its children that run, and those that it has not waited for.
    pub children: Mutex<ReservedList<Arc<Process>>>,
    /// Its tasks. Empty when it has ended.
    pub threads: Mutex<ReservedList<Arc<Task>>>,
    /// Its address space, which its tasks have too. `None` when it has ended, and for the kernel's own.
    pub space: Mutex<Option<Arc<Space>>>,
    /// Its open files, which it may share.
    pub files: Mutex<Arc<FileTable>>,
    /// Where it is in the tree of files, which it may share. `None` when it has ended, and for the kernel's own.
    pub fs: Mutex<Option<Arc<FsContext>>>,
    /// Signals to the process, and its handlers.
    pub signals: SharedSignals,
    /// The process group (`setpgid(2)`).
    pub group: AtomicU32,
    /// The session (`setsid(2)`).
    pub session: AtomicU32,
    /// What it runs.
    pub identity: Mutex<Identity>,
    /// What `/proc` shows besides.
    pub account: Account,
    /// Children's ends and stops wake this.
    pub child_events: WaitQueue,
    /// What waits for its end by a descriptor (`pidfd_open(2)`).
    pub end_waiters: Waiters,
    /// The parent of a `vfork` sleeps here until the child has an address space of its own, or none.
    pub vfork_done: WaitQueue,
    /// The child shares its parent's address space by `vfork`.
    pub is_vforked: AtomicBool,
    /// One of its tasks executes a program: see `super::exec`.
    pub is_executing: AtomicBool,
    /// A program has been executed since the last `fork` (`setpgid(2)`).
    pub has_executed: AtomicBool,
    /// The signal that its parent gets at its end; 0 for none.
    pub exit_signal: AtomicU32,
    /// Stopped by a signal; changed under the lock of `job_event`.
    pub stopped: AtomicBool,
    /// How often `SIGCONT` was sent; likewise.
    pub continuations: AtomicU64,
    /// Tasks wait here while it is stopped. Woken by `SIGCONT` and `SIGKILL`.
    pub continued: WaitQueue,
    /// The last stop or continuation, until the parent waits for it.
    pub job_event: Mutex<Option<JobEvent>>,
    /// The barriers that it may ask for (`membarrier(2)`).
    pub barriers: Registrations,
    /// Its limits (`getrlimit(2)`).
    pub limits: Limits,
    /// Its user had too many tasks when the process took it on (`RLIMIT_NPROC`).
    pub exceeds_tasks: AtomicBool,
    /// The control group that it is part of.
    pub control_group: Mutex<Arc<ControlGroup>>,
    /// Its users and rights.
    pub(super) credentials: Mutex<Credentials>,
    /// The rights that it uses, for a look without the lock.
    pub(super) rights: AtomicU64,
    /// It has set a timer of processor time.
    pub has_timers: AtomicBool,
    /// The core dump that one of its tasks writes.
    pub dump: Dump,
    /// What the last of its tasks that called `exit(2)` gave to it.
    pub last_status: AtomicU8,
    exit: Mutex<Option<Exit>>,
    ended: AtomicBool,
}

impl Process {
    /// A process without tasks, which inherits from `parent` and is its child at first.
    pub fn new(
        id: u32,
        parent: Option<&Arc<Process>>,
        space: Option<Arc<Space>>,
        files: Arc<FileTable>,
        fs: Option<Arc<FsContext>>,
        signals: SharedSignals,
    ) -> Arc<Self> {
        let inherit = |value: fn(&Process) -> &AtomicU32| {
            AtomicU32::new(parent.map_or(id, |parent| value(parent).load(Ordering::Relaxed)))
        };
        let credentials = parent.map(|parent| parent.credentials()).unwrap_or_default();
        Arc::new(Self {
            id,
            rights: AtomicU64::new(credentials.effective),
            credentials: Mutex::new(credentials),
            group: inherit(|parent| &parent.group),
            session: inherit(|parent| &parent.session),
            identity: Mutex::new(parent.map(|parent| parent.identity.lock().clone()).unwrap_or_default()),
            account: Account::for_child(parent.map(|parent| &parent.account)),
            parent: Mutex::new(parent.map(Arc::downgrade).unwrap_or_default()),
            children: Mutex::new(ReservedList::new()),
            threads: Mutex::new(ReservedList::new()),
            space: Mutex::new(space),
            files: Mutex::new(files),
            fs: Mutex::new(fs),
            signals,
            child_events: WaitQueue::new(),
            end_waiters: Waiters::new(),
            vfork_done: WaitQueue::new(),
            is_vforked: AtomicBool::new(false),
            is_executing: AtomicBool::new(false),
            has_executed: AtomicBool::new(false),
            exit_signal: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            continuations: AtomicU64::new(0),
            continued: WaitQueue::new(),
            job_event: Mutex::new(None),
            barriers: parent.map(|parent| parent.barriers.inherited()).unwrap_or_default(),
            limits: parent.map(|parent| parent.limits.inherited()).unwrap_or_default(),
            exceeds_tasks: AtomicBool::new(false),
            control_group: Mutex::new(
                parent.map_or_else(|| group::root().clone(), |parent| parent.control_group.lock().clone()),
            ),
            has_timers: AtomicBool::new(false),
            dump: Dump::default(),
            last_status: AtomicU8::new(0),
            exit: Mutex::new(None),
            ended: AtomicBool::new(false),
        })
    }

    /// The kernel's own process, to which idle tasks belong.
    pub fn kernel() -> Arc<Self> {
        static KERNEL: Once<Arc<Process>> = Once::new();
        let new = || Self::new(0, None, None, Arc::default(), None, SharedSignals::default());
        KERNEL.call_once(new).clone()
    }

    /// The parent, unless it is gone.
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.parent.lock().upgrade()
    }

    /// Lets all tasks of the process end. The first call says how the process ended.
    pub fn begin_exit(&self, exit: Exit) {
        self.exit.lock().get_or_insert(exit);
        self.kill_threads(None);
        self.continued.wake_all();
    }

    /// Lets all tasks end but one.
    pub fn kill_threads(&self, but: Option<&Arc<Task>>) {
        for thread in self.threads.lock().iter() {
            if but.is_none_or(|but| !Arc::ptr_eq(but, thread)) {
                thread.kill();
            }
        }
    }

    /// How the process ends, once that is known.
    pub fn exit(&self) -> Option<Exit> {
        *self.exit.lock()
    }

    /// Its address space, as a reference of the caller's: the lock is free again.
    pub fn space_handle(&self) -> Option<Arc<Space>> {
        self.space.lock().clone()
    }

    /// The process has no tasks any more, and can be waited for.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Says so. A process whose tasks all ended by `exit(2)` has the status of the last one.
    pub(super) fn set_ended(&self) {
        self.exit.lock().get_or_insert(Exit::Exited(self.last_status.load(Ordering::Relaxed)));
        self.ended.store(true, Ordering::Release);
        self.end_waiters.notify();
    }
}
