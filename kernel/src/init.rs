//! The first process, and the end of the machine's work with it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::interrupts;

use crate::boot::command;
use crate::cpu::registers::Registers;
use crate::device::exit::{Outcome, exit};
use crate::device::serial::log;
use crate::errno::Errno;
use crate::files::context::FsContext;
use crate::files::mount;
use crate::files::table::FileTable;
use crate::files::walk::{Follow, Walk};
use crate::ipc;
use crate::memory::failures;
use crate::memory::manager::{self, Balance};
use crate::observe;
use crate::program::image::ProgramFile;
use crate::selftest;
use crate::service::{self, EVENTS};
use crate::task::credentials::ROOT;
use crate::task::exec::{self, Strings};
use crate::task::limits::UNLIMITED;
use crate::task::process::{Exit, Process};
use crate::task::signal::shared::SharedSignals;
use crate::task::thread::{Task, UserContext};
use crate::task::{exit as task_exit, run, sched, table};

static ENDED: AtomicBool = AtomicBool::new(false);

/// The first process has ended.
pub fn init_ended() {
    ENDED.store(true, Ordering::Release);
    EVENTS.wake_all();
}

/// The first task: it runs the machine's command, serves timers and the terminal meanwhile, and ends the machine.
pub extern "C" fn supervise() -> ! {
    sched::finish_switch();
    interrupts::enable();
    let before = Balance::now();
    let outcome = match mount::start() {
        Ok(()) => run_command(),
        Err(errno) => {
            log!("the tree of files cannot be built: {errno}");
            Outcome::KernelFailed
        }
    };
    task_exit::kill_all();
    table::RELEASED.wait_uninterruptible(|| table::is_empty().then_some(()));
    ipc::remove_all();
    observe::mapped_files::forget();
    mount::end();
    let failed = failures::stop();
    if failed > 0 {
        log!("{failed} requests for memory failed on purpose");
    }
    exit(if manager::check(before) { outcome } else { Outcome::KernelFailed })
}

fn run_command() -> Outcome {
    selftest::fail_if_wanted();
    let (path, strings) = command::command();
    if let Err(errno) = start(&path, strings) {
        log!("cannot run {}: {errno}", path.escape_ascii());
        return Outcome::NotStarted(errno);
    }
    service::serve_until(&ENDED);
    let init = table::process(table::INIT).expect("kept until it is forgotten here");
    let exit = init.exit().unwrap_or(Exit::Exited(0));
    table::forget(&init);
    match exit {
        Exit::Exited(status) => Outcome::Exited(status),
        Exit::Killed(signal) | Exit::Dumped(signal) => Outcome::Killed(signal as u8),
    }
}

/// Makes the first process. Its program is loaded here, in the supervisor, so that a failure is seen.
fn start(path: &[u8], strings: Strings) -> Result<(), Errno> {
    let id = table::take(ROOT, UNLIMITED)?;
    debug_assert_eq!(id, table::INIT);
    let files: Arc<FileTable> = Arc::default();
    mount::open_standard(&files)?;
    let process =
        Process::new(id, None, None, files, Some(FsContext::first(mount::root())), SharedSignals::default());
    process.threads.lock().reserve_one()?;
    let context = UserContext::new(Registers::default());
    let task = Task::new(process, id, context, None, first_program)?;
    *COMMAND.lock() = Some((path.to_vec(), strings));
    run::launch(task, || Ok(()))?;
    EVENTS.wait_uninterruptible(|| STARTED.lock().take()).inspect_err(|_| table::release(id))
}

static COMMAND: crate::sync::Mutex<Option<(Vec<u8>, Strings)>> = crate::sync::Mutex::new(None);
static STARTED: crate::sync::Mutex<Option<Result<(), Errno>>> = crate::sync::Mutex::new(None);

/// The first process's only task begins here: it executes the command.
extern "C" fn first_program() -> ! {
    sched::finish_switch();
    interrupts::enable();
    let started = execute();
    *STARTED.lock() = Some(started);
    EVENTS.wake_all();
    if started.is_ok() {
        failures::start();
        run::user_loop();
        task_exit::finish();
    } else {
        task_exit::abandon();
    }
    sched::end_task()
}

/// Enters the directory that the command starts in.
fn enter_directory() -> Result<(), Errno> {
    let Some(path) = command::directory() else { return Ok(()) };
    let fs = sched::current_ref().process.fs.lock().clone().ok_or(Errno::ENOENT)?;
    let places = fs.places();
    let walk = Walk { root: places.root, base: places.current, follow: Follow::Always, resolve: 0 };
    let place = walk.find(path)?.existing()?;
    place.node().directory()?;
    fs.set_current(place);
    Ok(())
}

fn execute() -> Result<(), Errno> {
    let (path, strings) = COMMAND.lock().take().expect("set before the launch");
    enter_directory()?;
    exec::execute(&sched::current(), ProgramFile::open(&path)?, strings)
}
