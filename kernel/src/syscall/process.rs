//! What a program asks about itself and the machine, and its end.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use linux_raw_sys::{general as abi, prctl};
use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::cpu::{area, topology};
use crate::errno::Errno;
use crate::files::io::UserParts;
use crate::files::random;
use crate::memory::manager::manager;
use crate::observe::VERSION;
use crate::task::credentials::{Credentials, REAL, Right};
use crate::task::process::Exit;
use crate::task::{Task, affinity, sched, signal, table};
use crate::time;

const ARCH_SET_FS: u64 = 0x1002;
const ARCH_GET_FS: u64 = 0x1003;
/// The size of a string of `struct utsname`.
const NAME_BYTES: usize = 65;
/// The size of `struct robust_list_head`.
const ROBUST_HEAD_BYTES: u64 = 24;

impl Call<'_> {
    /// `exit`: ends the task. A process whose tasks all end so has the status of the last one.
    pub(super) fn exit(&self) -> Answer {
        self.process().last_status.store(self.arguments[0] as u8, Ordering::Relaxed);
        sched::current().kill();
        Ok(0)
    }

    pub(super) fn exit_group(&self) -> Answer {
        self.process().begin_exit(Exit::Exited(self.arguments[0] as u8));
        Ok(0)
    }

    /// `arch_prctl`: the base of thread-local storage.
    pub(super) fn arch_prctl(&self) -> Answer {
        let [code, base, ..] = self.arguments;
        match code {
            ARCH_SET_FS if base >= self.space.layout().user.end.0 => Err(Errno::EPERM),
            ARCH_SET_FS => {
                self.task.set_fs_base(VirtAddr(base));
                Ok(0)
            }
            ARCH_GET_FS => {
                // SAFETY: X3: the task is the running one, and its program does not run.
                let base = unsafe { self.task.user() }.fs_base.0;
                self.store_result(self.arguments[1], &[base])?;
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn prctl(&self) -> Answer {
        match self.arguments[0] as u32 {
            prctl::PR_GET_NAME => {
                let name = self.task.name();
                self.memory.write(self.addr(1), &name)?;
                Ok(0)
            }
            prctl::PR_SET_NAME => {
                let name = self.memory.read_string(self.addr(1), 16, Errno::ERANGE).or_else(|errno| {
                    let mut start = [0; 15];
                    if errno == Errno::ERANGE {
                        self.memory.read(self.addr(1), &mut start).map(|()| start.to_vec())
                    } else {
                        Err(errno)
                    }
                })?;
                let mut padded = [0; 16];
                padded[..name.len().min(15)].copy_from_slice(&name[..name.len().min(15)]);
                self.task.set_name(padded);
                Ok(0)
            }
            prctl::PR_GET_DUMPABLE => Ok(self.process().account.is_dumpable.load(Ordering::Relaxed).into()),
            prctl::PR_SET_DUMPABLE if self.arguments[1] <= 1 => {
                self.process().account.is_dumpable.store(self.arguments[1] == 1, Ordering::Relaxed);
                Ok(0)
            }
            prctl::PR_GET_PDEATHSIG => {
                let signal = self.process().account.death_signal.load(Ordering::Relaxed);
                self.memory.write(self.addr(1), &signal.to_le_bytes())?;
                Ok(0)
            }
            prctl::PR_SET_PDEATHSIG if self.arguments[1] <= u64::from(signal::COUNT) => {
                self.process().account.death_signal.store(self.arguments[1] as u32, Ordering::Relaxed);
                Ok(0)
            }
            prctl::PR_SET_NO_NEW_PRIVS if self.arguments[1..5] == [1, 0, 0, 0] => {
                self.process().account.no_new_privs.store(true, Ordering::Relaxed);
                Ok(0)
            }
            prctl::PR_GET_NO_NEW_PRIVS if self.arguments[1..5] == [0; 4] => {
                Ok(self.process().account.no_new_privs.load(Ordering::Relaxed).into())
            }
            prctl::PR_GET_KEEPCAPS => Ok(u64::from(self.process().credentials().keeps)),
            prctl::PR_SET_KEEPCAPS => {
                let keeps = self.arguments[1] != 0;
                self.process().change_credentials(|own| Ok(Credentials { keeps, ..own.clone() }))?;
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn set_tid_address(&self) -> Answer {
        self.task.clear_child_tid.store(self.arguments[0], Ordering::Relaxed);
        self.gettid()
    }

    pub(super) fn set_robust_list(&self) -> Answer {
        let [head, size, ..] = self.arguments;
        if size != ROBUST_HEAD_BYTES {
            return Err(Errno::EINVAL);
        }
        self.task.robust_list.store(head, Ordering::Relaxed);
        Ok(0)
    }

    pub(super) fn get_robust_list(&self) -> Answer {
        let [pid, head, size, ..] = self.arguments;
        let task = self.task_or_own(pid as u32)?;
        if !self.process().may_trace(&task.process) {
            return Err(Errno::EPERM);
        }
        self.store_result(head, &[task.robust_list.load(Ordering::Relaxed)])?;
        self.store_result(size, &[ROBUST_HEAD_BYTES])?;
        Ok(0)
    }

    pub(super) fn sched_yield(&self) -> Answer {
        sched::schedule();
        Ok(0)
    }

    pub(super) fn sched_getaffinity(&self) -> Answer {
        let [pid, bytes, mask, ..] = self.arguments;
        if bytes < 8 || !bytes.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        self.store_result(mask, &[self.task_or_own(pid as u32)?.allowed.mask()])?;
        Ok(8)
    }

    /// `sched_setaffinity`: CPUs that the machine does not have are ignored.
    pub(super) fn sched_setaffinity(&self) -> Answer {
        let [pid, bytes, mask, ..] = self.arguments;
        let mut first = [0; 8];
        self.memory.read(VirtAddr(mask), &mut first[..bytes.min(8) as usize])?;
        let task = self.task_or_own(pid as u32)?;
        let (own, other) = (self.process().credentials(), task.process.credentials());
        if ![other.users[REAL], other.user()].contains(&own.user()) && !own.has(Right::Nice) {
            return Err(Errno::EPERM);
        }
        let mask = u64::from_le_bytes(first) & affinity::all();
        if mask == 0 {
            return Err(Errno::EINVAL);
        }
        task.allowed.set(mask);
        task.cpus_changed();
        // The caller may rely on it, unless it must move or end itself.
        while sched::runs_where_forbidden(&task) && !self.task.must_leave() {
            sched::schedule();
        }
        Ok(0)
    }

    fn task_or_own(&self, id: u32) -> Result<Arc<Task>, Errno> {
        if id == 0 { Ok(sched::current()) } else { table::task(id).ok_or(Errno::ESRCH) }
    }

    /// `sched_get_priority_max` and `sched_get_priority_min`: policies for real time have priorities, which are taken and
    /// not used.
    pub(super) fn priority_bound(&self, bound: u64) -> Answer {
        match self.arguments[0] as u32 {
            abi::SCHED_FIFO | abi::SCHED_RR => Ok(bound),
            abi::SCHED_NORMAL | abi::SCHED_BATCH | abi::SCHED_IDLE | abi::SCHED_DEADLINE => Ok(0),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn sched_getparam(&self) -> Answer {
        self.memory.write(self.addr(1), &[0; 4])?;
        Ok(0)
    }

    pub(super) fn getcpu(&self) -> Answer {
        let cpu = area::cpu_id();
        let node = u32::from(topology::get().node_of(cpu));
        for (at, value) in [(self.arguments[0], cpu.0), (self.arguments[1], node)] {
            if at != 0 {
                self.memory.write(VirtAddr(at), &value.to_le_bytes())?;
            }
        }
        Ok(0)
    }

    /// `uname`: six strings of 65 bytes, the last of which, the domain, is empty.
    pub(super) fn uname(&self) -> Answer {
        let mut names = [[0; NAME_BYTES]; 6];
        for (field, name) in
            names.iter_mut().zip([VERSION.system, VERSION.node, VERSION.release, VERSION.build, "x86_64"])
        {
            field[..name.len()].copy_from_slice(name.as_bytes());
        }
        self.memory.write(self.addr(0), names.as_flattened())?;
        Ok(0)
    }

    pub(super) fn sysinfo(&self) -> Answer {
        let info = manager().meminfo();
        let kib = |name: &str| info.lines().find(|(line, _)| *line == name).map_or(0, |(_, kib)| kib * 1024);
        let processes = table::processes().count() as u64;
        let mut words = [0; 14];
        words[0] = time::now_ns() / 1_000_000_000;
        words[4] = kib("MemTotal");
        words[5] = kib("MemFree");
        words[10] = processes;
        // The unit of memory, in bytes.
        words[13] = 1;
        self.store_result(self.arguments[0], &words)?;
        Ok(0)
    }

    pub(super) fn getrandom(&self) -> Answer {
        let [_, bytes, flags, ..] = self.arguments;
        if flags as u32 & !(abi::GRND_NONBLOCK | abi::GRND_RANDOM | abi::GRND_INSECURE) != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(random::read(&mut UserParts::one(self.memory, self.addr(0), bytes)?)? as u64)
    }
}
