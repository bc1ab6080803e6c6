//! `membarrier`

use core::sync::atomic::{Ordering, fence};

use linux_raw_sys::general::membarrier_cmd as cmd;
use quire::platform::FramePlatform;

use crate::errno::Errno;
use crate::memory::platform::MACHINE;
use crate::syscall::{Answer, Call};
use crate::task::Task;

const QUERY: u32 = cmd::MEMBARRIER_CMD_QUERY as u32;
const GLOBAL: u32 = cmd::MEMBARRIER_CMD_GLOBAL as u32;
const GLOBAL_EXPEDITED: u32 = cmd::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32;
const REGISTER_GLOBAL: u32 = cmd::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as u32;
const PRIVATE: u32 = cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32;
const REGISTER_PRIVATE: u32 = cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32;
const SYNC_CORE: u32 = cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const REGISTER_SYNC_CORE: u32 = cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const RSEQ: u32 = cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ as u32;
const REGISTER_RSEQ: u32 = cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ as u32;
const GET_REGISTRATIONS: u32 = cmd::MEMBARRIER_CMD_GET_REGISTRATIONS as u32;

/// `MEMBARRIER_CMD_FLAG_CPU`: a CPU is named, whose restartable sequences alone must end.
const FLAG_CPU: u32 = 1;

/// The commands that this kernel has.
const COMMANDS: u32 = GLOBAL
    | GLOBAL_EXPEDITED
    | REGISTER_GLOBAL
    | PRIVATE
    | REGISTER_PRIVATE
    | SYNC_CORE
    | REGISTER_SYNC_CORE
    | RSEQ
    | REGISTER_RSEQ
    | GET_REGISTRATIONS;

impl Call<'_> {
    /// `membarrier`
    pub(in crate::syscall) fn membarrier(&self) -> Answer {
        let [command, flags, ..] = self.arguments.map(|argument| argument as u32);
        if flags != 0 && (command, flags) != (RSEQ, FLAG_CPU) {
            return Err(Errno::EINVAL);
        }
        let registered = &self.process().barriers;
        match command {
            QUERY => return Ok(u64::from(COMMANDS)),
            GET_REGISTRATIONS => return Ok(u64::from(registered.all())),
            REGISTER_GLOBAL | REGISTER_PRIVATE | REGISTER_SYNC_CORE | REGISTER_RSEQ => {
                registered.add(command)
            }
            PRIVATE if !registered.has(REGISTER_PRIVATE) => return Err(Errno::EPERM),
            SYNC_CORE if !registered.has(REGISTER_SYNC_CORE) => return Err(Errno::EPERM),
            RSEQ if !registered.has(REGISTER_RSEQ) => return Err(Errno::EPERM),
            RSEQ => end_sequences(self.task),
            GLOBAL | GLOBAL_EXPEDITED | PRIVATE | SYNC_CORE => fence_all(),
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}

/// All other tasks of the process leave their restartable sequences before their programs go on, on whichever CPU the
/// caller has named. Each CPU is interrupted, so a program that runs stops, and its task finds that it is marked.
fn end_sequences(task: &Task) {
    for other in task.process.threads.lock().iter().filter(|other| other.id() != task.id()) {
        other.set_rseq_flag();
    }
    fence_all();
}

/// All CPUs run a barrier, whether or not the process runs there. That takes an interrupt of each, whose return also
/// makes it see changed instructions.
fn fence_all() {
    fence(Ordering::SeqCst);
    // One that the firmware names and that never started would not answer.
    MACHINE.fence_cpus(&MACHINE.online_cpus());
}
