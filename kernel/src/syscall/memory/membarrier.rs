//! `membarrier`

use core::sync::atomic::{Ordering, fence};

use linux_raw_sys::general::membarrier_cmd as cmd;
use quire::platform::FramePlatform;

use crate::errno::Errno;
use crate::memory::platform::MACHINE;
use crate::syscall::{Answer, Call};

const QUERY: u32 = cmd::MEMBARRIER_CMD_QUERY as u32;
const GLOBAL: u32 = cmd::MEMBARRIER_CMD_GLOBAL as u32;
const GLOBAL_EXPEDITED: u32 = cmd::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32;
const REGISTER_GLOBAL: u32 = cmd::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as u32;
const PRIVATE: u32 = cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32;
const REGISTER_PRIVATE: u32 = cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32;
const SYNC_CORE: u32 = cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const REGISTER_SYNC_CORE: u32 = cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32;
const GET_REGISTRATIONS: u32 = cmd::MEMBARRIER_CMD_GET_REGISTRATIONS as u32;

/// The commands that this kernel has. Those for restartable sequences are missing, as these are.
const COMMANDS: u32 = GLOBAL
    | GLOBAL_EXPEDITED
    | REGISTER_GLOBAL
    | PRIVATE
    | REGISTER_PRIVATE
    | SYNC_CORE
    | REGISTER_SYNC_CORE
    | GET_REGISTRATIONS;

impl Call<'_> {
    /// `membarrier`
    pub(in crate::syscall) fn membarrier(&self) -> Answer {
        let [command, flags, ..] = self.arguments.map(|argument| argument as u32);
        if flags != 0 {
            return Err(Errno::EINVAL);
        }
        let registered = &self.process().barriers;
        match command {
            QUERY => return Ok(u64::from(COMMANDS)),
            GET_REGISTRATIONS => return Ok(u64::from(registered.all())),
            REGISTER_GLOBAL | REGISTER_PRIVATE | REGISTER_SYNC_CORE => registered.add(command),
            PRIVATE if !registered.has(REGISTER_PRIVATE) => return Err(Errno::EPERM),
            SYNC_CORE if !registered.has(REGISTER_SYNC_CORE) => return Err(Errno::EPERM),
            GLOBAL | GLOBAL_EXPEDITED | PRIVATE | SYNC_CORE => fence_all(),
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }
}

/// All CPUs run a barrier, whether or not the process runs there. That takes an interrupt of each, whose return also
/// makes it see changed instructions.
fn fence_all() {
    fence(Ordering::SeqCst);
    // One that the firmware names and that never started would not answer.
    MACHINE.fence_cpus(&MACHINE.online_cpus());
}
