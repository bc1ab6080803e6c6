//! The Linux that runs this test, as a child process that makes system calls, beside the model of address spaces and
//! beside the library. What they call Linux's behaviour is so.

mod child;
mod errno;
mod hostile;
mod known;
mod lazy;
mod library;
mod model;
mod pair;
mod placed;
mod smaps;
mod subject;

/// One test at a time: a child shares the memory of whatever runs when it is made.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
