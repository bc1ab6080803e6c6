//! Tasks and processes, as Linux has them: a process is a group of tasks (threads) that share an address space.
//!
//! # How tasks switch
//!
//! A task runs in the kernel until it calls [`sched::schedule`] or sleeps: nothing preempts the kernel. So a
//! task that is in the middle of a call of Quire stays on its CPU, and `Platform::pin` costs nothing. On the way
//! back to its program a task lets others run if its time is up, and the calls of `Platform::reschedule_point` do
//! the same in long calls.
//!
//! # Locks
//!
//! A lock of this module is a spin lock, held for a few instructions, never across a call of Quire that may sleep.
//! The order, where two are held: that of signals to several processes, the process table, a process, a task's signals, a
//! wait queue, a run queue.

pub mod affinity;
pub mod barriers;
pub mod clone;
pub mod coredump;
pub mod credentials;
pub mod exec;
pub mod exit;
pub mod futex;
pub mod group;
pub mod limits;
pub mod nodes;
pub mod oom;
pub mod owned_futex;
pub mod process;
pub mod rseq;
pub mod run;
pub mod run_queue;
pub mod sched;
pub mod signal;
pub mod sleep_lock;
pub mod switch;
pub mod table;
pub mod thread;
pub mod timers;
pub mod wait;
pub mod wait4;
pub mod word;

pub use thread::Task;
