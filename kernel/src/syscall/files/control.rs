//! `fcntl(2)` and `ioctl(2)`.

use linux_raw_sys::general as abi;
use linux_raw_sys::ioctl;

use crate::errno::Errno;
use crate::files::locks::{self, Lock, LockSet, Owner};
use crate::files::open::{Ioctl, OpenFile};
use crate::syscall::{Answer, Call};
use quire::addr::VirtAddr;

/// The commands for locks of open files, which the header of `fcntl(2)` defines.
const F_OFD_GETLK: u32 = abi::F_OFD_GETLK;

impl Call<'_> {
    pub(in crate::syscall) fn fcntl(&self) -> Answer {
        let [descriptor, command, argument, ..] = self.arguments;
        let table = self.table();
        let file = table.get(descriptor)?;
        match command as u32 {
            abi::F_DUPFD => table.add_from(argument, file, false),
            abi::F_DUPFD_CLOEXEC => table.add_from(argument, file, true),
            abi::F_GETFD => Ok(u64::from(table.close_on_exec(descriptor)?)),
            abi::F_SETFD => {
                table.set_close_on_exec(descriptor, argument as u32 & abi::FD_CLOEXEC != 0)?;
                Ok(0)
            }
            abi::F_GETFL => Ok(u64::from(file.flags())),
            _ if file.is_path_only() => Err(Errno::EBADF),
            abi::F_SETFL => {
                file.set_flags(argument as u32);
                Ok(0)
            }
            abi::F_GETLK | F_OFD_GETLK => self.get_lock(&file, command as u32),
            abi::F_SETLK | abi::F_SETLKW | abi::F_OFD_SETLK | abi::F_OFD_SETLKW => {
                self.set_lock(&file, command as u32)
            }
            // No signal is sent when a file becomes ready.
            abi::F_GETOWN | abi::F_GETSIG => Ok(0),
            abi::F_SETOWN | abi::F_SETSIG => Ok(0),
            // A reader of a file that others write must not take that from them.
            abi::F_ADD_SEALS if !file.can_write() => Err(Errno::EPERM),
            command => file.file().control(command, argument),
        }
    }

    /// `flock`: a lock of the whole file, which the open file has.
    pub(in crate::syscall) fn flock(&self) -> Answer {
        let file = self.file(0)?;
        let operation = self.arguments[1] as u32;
        let mut lock = Lock {
            set: LockSet::Whole,
            owner: Owner::of_file(&file),
            process: self.process().id,
            exclusive: false,
            start: 0,
            last: u64::MAX,
        };
        let waits = operation & abi::LOCK_NB == 0;
        match operation & !abi::LOCK_NB {
            abi::LOCK_SH => {}
            abi::LOCK_EX => lock.exclusive = true,
            abi::LOCK_UN => {
                locks::release(&file, lock)?;
                return Ok(0);
            }
            _ => return Err(Errno::EINVAL),
        }
        locks::release_other_type(&file, &lock);
        locks::acquire(&file, lock, waits)?;
        Ok(0)
    }

    /// Requests that concern the descriptor are served here, all others by the file.
    pub(in crate::syscall) fn ioctl(&self) -> Answer {
        let [descriptor, request, argument, ..] = self.arguments;
        let file = self.file(0)?;
        match request as u32 {
            ioctl::FIOCLEX | ioctl::FIONCLEX => {
                self.table().set_close_on_exec(descriptor, request as u32 == ioctl::FIOCLEX)?;
                Ok(0)
            }
            ioctl::FIONBIO => {
                let on = self.memory.read_u32(VirtAddr(argument))? != 0;
                let flags = file.flags() & !abi::O_NONBLOCK;
                file.set_flags(if on { flags | abi::O_NONBLOCK } else { flags });
                Ok(0)
            }
            ioctl::FIONREAD if file.is_regular() => {
                let left = file.attributes().size.saturating_sub(*file.position().lock());
                self.memory.write(VirtAddr(argument), &(left as u32).to_le_bytes())?;
                Ok(0)
            }
            request => file.file().ioctl(&Ioctl { memory: self.memory, request, argument }),
        }
    }
}

/// Whether a command is about locks of the open file.
pub(super) fn is_of_open_file(file: &OpenFile, command: u32) -> Option<Owner> {
    let of_file = matches!(command, F_OFD_GETLK | abi::F_OFD_SETLK | abi::F_OFD_SETLKW);
    of_file.then(|| Owner::of_file(file))
}
