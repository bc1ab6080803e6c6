//! System calls, with the numbers, arguments and results of Linux on x86-64.

mod clone;
mod exec;
mod files;
mod futex;
mod ids;
mod kcmp;
mod limits;
mod memory;
mod process;
mod process_file;
mod rseq;
mod signals;
mod sockets;
mod time;
mod timers;
mod unshare;
mod wait;

use alloc::sync::Arc;

use ids::Which;
use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use crate::cpu::registers::Registers;
use crate::errno::Errno;
use crate::memory::manager::Space;
use crate::memory::user::UserMemory;
use crate::task::Task;
use crate::task::process::Process;

/// The result of a call, as the program gets it in RAX.
pub type Answer = Result<u64, Errno>;

/// A call that is being served.
struct Call<'s> {
    task: &'s Task,
    space: &'s Space,
    memory: UserMemory<'s>,
    arguments: [u64; 6],
}

/// Serves the call in the running task's registers.
pub fn serve(task: &Task) {
    task.usage.note_call();
    task.begin_call();
    let registers = task.registers();
    // SAFETY: X3: the program does not run, so the running task alone uses its registers.
    let Registers { rax: number, rdi, rsi, rdx, r10, r8, r9, .. } = unsafe { (*registers).clone() };
    let arguments = [rdi, rsi, rdx, r10, r8, r9];
    let answer = match number as u32 {
        // These two change all registers, and the address space that other calls refer to.
        abi::__NR_rt_sigreturn => return signals::sigreturn(task),
        abi::__NR_execve => exec::execve(task, arguments),
        abi::__NR_execveat => exec::execveat(task, arguments),
        _ => {
            let space = task.space();
            Call { task, space, memory: UserMemory::of(space), arguments }.answer(number)
        }
    };
    let result = match answer {
        Ok(_) if number as u32 == abi::__NR_execve || number as u32 == abi::__NR_execveat => return,
        Ok(value) => value,
        Err(errno) => {
            if errno == Errno::EINTR {
                task.set_interrupted_call(number);
            }
            errno.as_result()
        }
    };
    // SAFETY: X3: the program still does not run.
    unsafe { (*registers).rax = result };
}

impl Call<'_> {
    /// Chooses the function by number. Unknown calls fail as in an older Linux, which libc expects.
    fn answer(&mut self, number: u64) -> Answer {
        match u32::try_from(number).map_err(|_| Errno::ENOSYS)? {
            // Files.
            abi::__NR_access => self.access(),
            abi::__NR_chdir => self.chdir(),
            abi::__NR_chmod => self.chmod(),
            abi::__NR_chown => self.chown(),
            abi::__NR_chroot => self.chroot(),
            abi::__NR_close => self.close(),
            abi::__NR_close_range => self.close_range(),
            abi::__NR_copy_file_range => self.copy_file_range(),
            abi::__NR_creat => self.creat(),
            abi::__NR_dup => self.dup(),
            abi::__NR_dup2 => self.dup2(),
            abi::__NR_dup3 => self.dup3(),
            abi::__NR_epoll_create => self.epoll_create(),
            abi::__NR_epoll_create1 => self.epoll_create1(),
            abi::__NR_epoll_ctl => self.epoll_ctl(),
            abi::__NR_epoll_pwait => self.epoll_pwait(),
            abi::__NR_epoll_pwait2 => self.epoll_pwait2(),
            abi::__NR_epoll_wait => self.epoll_wait(),
            abi::__NR_eventfd => self.eventfd(),
            abi::__NR_eventfd2 => self.eventfd2(),
            abi::__NR_faccessat => self.faccessat(),
            abi::__NR_faccessat2 => self.faccessat2(),
            abi::__NR_fadvise64 => self.fadvise64(),
            abi::__NR_fallocate => self.fallocate(),
            abi::__NR_fchdir => self.fchdir(),
            abi::__NR_fchmod => self.fchmod(),
            abi::__NR_fchmodat => self.fchmodat(),
            abi::__NR_fchmodat2 => self.fchmodat2(),
            abi::__NR_fchown => self.fchown(),
            abi::__NR_fchownat => self.fchownat(),
            abi::__NR_fcntl => self.fcntl(),
            abi::__NR_flock => self.flock(),
            abi::__NR_fstat => self.fstat(),
            abi::__NR_fstatfs => self.fstatfs(),
            abi::__NR_fsync | abi::__NR_fdatasync => self.fsync(),
            abi::__NR_ftruncate => self.ftruncate(),
            abi::__NR_futimesat => self.futimesat(),
            abi::__NR_getcwd => self.getcwd(),
            abi::__NR_getdents64 => self.getdents64(),
            abi::__NR_ioctl => self.ioctl(),
            abi::__NR_lchown => self.lchown(),
            abi::__NR_link => self.link(),
            abi::__NR_linkat => self.linkat(),
            abi::__NR_lseek => self.lseek(),
            abi::__NR_lstat => self.lstat(),
            abi::__NR_memfd_create => self.memfd_create(),
            abi::__NR_mkdir => self.mkdir(),
            abi::__NR_mkdirat => self.mkdirat(),
            abi::__NR_mknod => self.mknod(),
            abi::__NR_mknodat => self.mknodat(),
            abi::__NR_newfstatat => self.newfstatat(),
            abi::__NR_open => self.open(),
            abi::__NR_openat => self.openat(),
            abi::__NR_openat2 => self.openat2(),
            abi::__NR_pipe => self.pipe(),
            abi::__NR_pipe2 => self.pipe2(),
            abi::__NR_poll => self.poll(),
            abi::__NR_ppoll => self.ppoll(),
            abi::__NR_pread64 => self.pread64(),
            abi::__NR_preadv => self.preadv(),
            abi::__NR_preadv2 => self.preadv2(),
            abi::__NR_pselect6 => self.pselect6(),
            abi::__NR_pwrite64 => self.pwrite64(),
            abi::__NR_pwritev => self.pwritev(),
            abi::__NR_pwritev2 => self.pwritev2(),
            abi::__NR_read => self.read(),
            abi::__NR_readahead => self.readahead(),
            abi::__NR_readlink => self.readlink(),
            abi::__NR_readlinkat => self.readlinkat(),
            abi::__NR_readv => self.readv(),
            abi::__NR_rename => self.rename(),
            abi::__NR_renameat => self.renameat(),
            abi::__NR_renameat2 => self.renameat2(),
            abi::__NR_rmdir => self.rmdir(),
            abi::__NR_select => self.select(),
            abi::__NR_sendfile => self.sendfile(),
            abi::__NR_stat => self.stat(),
            abi::__NR_statfs => self.statfs(),
            abi::__NR_statx => self.statx(),
            abi::__NR_symlink => self.symlink(),
            abi::__NR_symlinkat => self.symlinkat(),
            abi::__NR_sync => self.sync(),
            abi::__NR_sync_file_range => self.sync_file_range(),
            abi::__NR_syncfs => self.syncfs(),
            abi::__NR_truncate => self.truncate(),
            abi::__NR_umask => self.umask(),
            abi::__NR_unlink => self.unlink(),
            abi::__NR_unlinkat => self.unlinkat(),
            abi::__NR_utime => self.utime(),
            abi::__NR_utimensat => self.utimensat(),
            abi::__NR_utimes => self.utimes(),
            abi::__NR_write => self.write(),
            abi::__NR_writev => self.writev(),
            abi::__NR_getxattr | abi::__NR_setxattr | abi::__NR_removexattr => self.xattr(true),
            abi::__NR_lgetxattr | abi::__NR_lsetxattr | abi::__NR_lremovexattr => self.xattr(false),
            abi::__NR_fgetxattr | abi::__NR_fsetxattr | abi::__NR_fremovexattr => self.fxattr(),
            abi::__NR_listxattr => self.listxattr(true),
            abi::__NR_llistxattr => self.listxattr(false),
            abi::__NR_flistxattr => self.flistxattr(),
            abi::__NR_mount => self.mount(),
            abi::__NR_umount2 => self.umount(),
            abi::__NR_pivot_root | abi::__NR_swapon | abi::__NR_swapoff => self.not_permitted(),

            // Sockets.
            abi::__NR_socket => self.socket(),
            abi::__NR_socketpair => self.socketpair(),
            abi::__NR_bind => self.bind(),
            abi::__NR_listen => self.listen(),
            abi::__NR_accept => self.accept(),
            abi::__NR_accept4 => self.accept4(),
            abi::__NR_connect => self.connect(),
            abi::__NR_shutdown => self.shutdown(),
            abi::__NR_getsockname => self.getsockname(),
            abi::__NR_getpeername => self.getpeername(),
            abi::__NR_getsockopt => self.getsockopt(),
            abi::__NR_setsockopt => self.setsockopt(),
            abi::__NR_sendto => self.sendto(),
            abi::__NR_sendmsg => self.sendmsg(),
            abi::__NR_recvfrom => self.recvfrom(),
            abi::__NR_recvmsg => self.recvmsg(),

            // Memory.
            abi::__NR_mmap => self.mmap(),
            abi::__NR_mprotect => self.mprotect(),
            abi::__NR_munmap => self.munmap(),
            abi::__NR_brk => self.brk(),
            abi::__NR_mremap => self.mremap(),
            abi::__NR_remap_file_pages => self.remap_file_pages(),
            abi::__NR_madvise => self.madvise(),
            abi::__NR_mincore => self.mincore(),
            abi::__NR_msync => self.msync(),
            abi::__NR_mlock => self.mlock(),
            abi::__NR_mlock2 => self.mlock2(),
            abi::__NR_munlock => self.munlock(),
            abi::__NR_mlockall => self.mlockall(),
            abi::__NR_munlockall => self.munlockall(),
            abi::__NR_pkey_mprotect => self.pkey_mprotect(),
            abi::__NR_pkey_alloc => self.pkey_alloc(),
            abi::__NR_pkey_free => self.pkey_free(),
            abi::__NR_membarrier => self.membarrier(),
            abi::__NR_userfaultfd => self.userfaultfd(),
            abi::__NR_mbind => self.mbind(),
            abi::__NR_set_mempolicy => self.set_mempolicy(),
            abi::__NR_get_mempolicy => self.get_mempolicy(),
            abi::__NR_set_mempolicy_home_node => self.set_mempolicy_home_node(),
            abi::__NR_migrate_pages => self.migrate_pages(),
            abi::__NR_move_pages => self.move_pages(),
            abi::__NR_shmget => self.shmget(),
            abi::__NR_shmat => self.shmat(),
            abi::__NR_shmdt => self.shmdt(),
            abi::__NR_shmctl => self.shmctl(),
            abi::__NR_process_madvise => self.process_madvise(),
            abi::__NR_process_vm_readv => self.process_vm_readv(),
            abi::__NR_process_vm_writev => self.process_vm_writev(),

            // Processes and threads.
            abi::__NR_clone => self.clone(),
            abi::__NR_clone3 => self.clone3(),
            abi::__NR_fork => self.fork(),
            abi::__NR_kcmp => self.kcmp(),
            abi::__NR_pidfd_getfd => self.pidfd_getfd(),
            abi::__NR_pidfd_open => self.pidfd_open(),
            abi::__NR_vfork => self.vfork(),
            abi::__NR_exit => self.exit(),
            abi::__NR_exit_group => self.exit_group(),
            abi::__NR_wait4 => self.wait4(),
            abi::__NR_waitid => self.waitid(),
            abi::__NR_getpid => self.getpid(),
            abi::__NR_gettid => self.gettid(),
            abi::__NR_getppid => self.getppid(),
            abi::__NR_setpgid => self.setpgid(),
            abi::__NR_getpgid => self.getpgid(),
            abi::__NR_getpgrp => self.getpgrp(),
            abi::__NR_setsid => self.setsid(),
            abi::__NR_getsid => self.getsid(),
            abi::__NR_getuid => self.get_id(Which::User, 0),
            abi::__NR_geteuid => self.get_id(Which::User, 1),
            abi::__NR_getgid => self.get_id(Which::Group, 0),
            abi::__NR_getegid => self.get_id(Which::Group, 1),
            abi::__NR_getresuid => self.get_ids(Which::User),
            abi::__NR_getresgid => self.get_ids(Which::Group),
            abi::__NR_getgroups => self.getgroups(),
            abi::__NR_setuid => self.set_id(Which::User),
            abi::__NR_setgid => self.set_id(Which::Group),
            abi::__NR_setreuid => self.set_two_ids(Which::User),
            abi::__NR_setregid => self.set_two_ids(Which::Group),
            abi::__NR_setresuid => self.set_three_ids(Which::User),
            abi::__NR_setresgid => self.set_three_ids(Which::Group),
            abi::__NR_setgroups => self.setgroups(),
            abi::__NR_rseq => self.rseq(),
            abi::__NR_set_tid_address => self.set_tid_address(),
            abi::__NR_set_robust_list => self.set_robust_list(),
            abi::__NR_get_robust_list => self.get_robust_list(),
            abi::__NR_futex => self.futex(),
            abi::__NR_futex_waitv => self.futex_waitv(),
            abi::__NR_sched_yield => self.sched_yield(),
            abi::__NR_sched_getaffinity => self.sched_getaffinity(),
            abi::__NR_sched_setaffinity => self.sched_setaffinity(),
            abi::__NR_sched_getscheduler | abi::__NR_sched_setscheduler | abi::__NR_sched_setparam => Ok(0),
            abi::__NR_sched_get_priority_max => self.priority_bound(99),
            abi::__NR_sched_get_priority_min => self.priority_bound(1),
            abi::__NR_sched_getparam => self.sched_getparam(),
            abi::__NR_getpriority => Ok(20),
            abi::__NR_setpriority => Ok(0),
            abi::__NR_capget => self.capget(),
            abi::__NR_capset => self.capset(),
            abi::__NR_getcpu => self.getcpu(),
            abi::__NR_arch_prctl => self.arch_prctl(),
            abi::__NR_prctl => self.prctl(),
            abi::__NR_prlimit64 => self.prlimit(),
            abi::__NR_getrlimit => self.getrlimit(),
            abi::__NR_setrlimit => self.setrlimit(),
            abi::__NR_getrusage => self.getrusage(),
            abi::__NR_times => self.times(),
            abi::__NR_unshare => self.unshare(),
            abi::__NR_uname => self.uname(),
            abi::__NR_sysinfo => self.sysinfo(),
            abi::__NR_getrandom => self.getrandom(),

            // Signals.
            abi::__NR_rt_sigaction => self.rt_sigaction(),
            abi::__NR_rt_sigprocmask => self.rt_sigprocmask(),
            abi::__NR_rt_sigpending => self.rt_sigpending(),
            abi::__NR_rt_sigsuspend => self.rt_sigsuspend(),
            abi::__NR_rt_sigtimedwait => self.rt_sigtimedwait(),
            abi::__NR_rt_sigqueueinfo => self.rt_sigqueueinfo(),
            abi::__NR_rt_tgsigqueueinfo => self.rt_tgsigqueueinfo(),
            abi::__NR_sigaltstack => self.sigaltstack(),
            abi::__NR_kill => self.kill(),
            abi::__NR_pidfd_send_signal => self.pidfd_send_signal(),
            abi::__NR_tkill => self.tkill(),
            abi::__NR_tgkill => self.tgkill(),
            abi::__NR_pause => self.pause(),

            // Time.
            abi::__NR_nanosleep => self.nanosleep(),
            abi::__NR_clock_nanosleep => self.clock_nanosleep(),
            abi::__NR_clock_gettime => self.clock_gettime(),
            abi::__NR_clock_getres => self.clock_getres(),
            abi::__NR_gettimeofday => self.gettimeofday(),
            abi::__NR_time => self.time(),
            abi::__NR_alarm => self.alarm(),
            abi::__NR_setitimer => self.setitimer(),
            abi::__NR_getitimer => self.getitimer(),
            abi::__NR_timer_create => self.timer_create(),
            abi::__NR_timer_settime => self.timer_settime(),
            abi::__NR_timer_gettime => self.timer_gettime(),
            abi::__NR_timer_getoverrun => self.timer_getoverrun(),
            abi::__NR_timer_delete => self.timer_delete(),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn addr(&self, index: usize) -> VirtAddr {
        VirtAddr(self.arguments[index])
    }

    fn process(&self) -> &Arc<Process> {
        &self.task.process
    }

    /// Stores words where an argument points, unless it is 0.
    fn store_words(&self, at: u64, words: &[u64]) -> Result<(), Errno> {
        if at == 0 { Ok(()) } else { self.store_result(at, words) }
    }

    /// Stores words where an argument points.
    fn store_result(&self, at: u64, words: &[u64]) -> Result<(), Errno> {
        for (index, word) in words.iter().enumerate() {
            let at = at.checked_add(index as u64 * 8).ok_or(Errno::EFAULT)?;
            self.memory.write(VirtAddr(at), &word.to_le_bytes())?;
        }
        Ok(())
    }

    /// Reads words from where an argument points.
    fn load_words<const WORDS: usize>(&self, at: u64) -> Result<[u64; WORDS], Errno> {
        let mut bytes = [[0; 8]; WORDS];
        self.memory.read(VirtAddr(at), bytes.as_flattened_mut())?;
        Ok(bytes.map(u64::from_le_bytes))
    }
}
