//! The calls about signals.

use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::task::credentials::Right;
use crate::task::process::Process;
use crate::task::signal::action::{Action, Effect};
use crate::task::signal::info::{INFO_BYTES, SigInfo};
use crate::task::signal::own::AltStack;
use crate::task::signal::send::Sent;
use crate::task::signal::{self, COUNT, SignalSet, UNSTOPPABLE, deliver, send, set_of};
use crate::task::wait::WaitQueue;
use crate::task::{Task, table};

/// The size of the kernel's `sigset_t`.
const SET_BYTES: u64 = 8;

/// `rt_sigreturn`, which has no result of its own.
pub(super) fn sigreturn(task: &Task) {
    if signal::restore(task).is_err() {
        send::force(task, SigInfo::kernel_fault(abi::SIGSEGV));
    }
}

impl Call<'_> {
    pub(super) fn rt_sigaction(&self) -> Answer {
        let [signal, new, old, size, ..] = self.arguments;
        let signal = self.signal_of(signal)?;
        if size != SET_BYTES || new != 0 && set_of(signal) & UNSTOPPABLE != 0 {
            return Err(Errno::EINVAL);
        }
        let signals = &self.process().signals;
        let before = if new == 0 {
            signals.action(signal)
        } else {
            let [handler, flags, restorer, mask] = self.load_words(new)?;
            let action = Action { handler, flags, restorer, mask: mask & !UNSTOPPABLE };
            let before = signals.set_action(signal, action);
            if matches!(action.effect(signal), Effect::Ignore | Effect::Continue) {
                send::discard(self.process(), set_of(signal));
            }
            before
        };
        self.store_words(old, &[before.handler, before.flags, before.restorer, before.mask])?;
        Ok(0)
    }

    pub(super) fn rt_sigprocmask(&self) -> Answer {
        let [how, new, old, size, ..] = self.arguments;
        if size != SET_BYTES {
            return Err(Errno::EINVAL);
        }
        let before = self.task.signals.mask();
        if new != 0 {
            let set = self.load_set(new)?;
            let mask = match how as u32 {
                abi::SIG_BLOCK => before | set,
                abi::SIG_UNBLOCK => before & !set,
                abi::SIG_SETMASK => set,
                _ => return Err(Errno::EINVAL),
            };
            send::change(self.task, |own| own.mask = mask);
            // What is pending may be taken now.
            self.task.set_signal_flag();
        }
        self.store_words(old, &[before])?;
        Ok(0)
    }

    pub(super) fn rt_sigpending(&self) -> Answer {
        let own = self.task.signals.0.lock();
        let pending = own.pending.set() | self.process().signals.pending.lock().set();
        let blocked = pending & own.mask;
        drop(own);
        self.store_result(self.arguments[0], &[blocked])?;
        Ok(0)
    }

    pub(super) fn rt_sigsuspend(&self) -> Answer {
        let [set, size, ..] = self.arguments;
        if size != SET_BYTES {
            return Err(Errno::EINVAL);
        }
        let mask = self.load_set(set)?;
        send::change(self.task, |own| own.set_mask_for_call(mask));
        self.task.set_signal_flag();
        self.pause()
    }

    /// Sleeps until a signal's handler has run.
    pub(super) fn pause(&self) -> Answer {
        let never = WaitQueue::new();
        never.wait_until(|| None)
    }

    pub(super) fn rt_sigtimedwait(&self) -> Answer {
        let [set, info, timeout, size, ..] = self.arguments;
        if size != SET_BYTES {
            return Err(Errno::EINVAL);
        }
        let set = self.load_set(set)? & !UNSTOPPABLE;
        let deadline = match timeout {
            0 => None,
            at => Some(self.task.call_end(self.load_time(at)?)),
        };
        // The signals wake the task although it blocks or ignores them.
        send::change(self.task, |own| own.awaited = set);
        let take = || deliver::take(self.task, |_| set).map(|(info, _)| info);
        let found = match WaitQueue::new().wait_until_deadline(deadline, take) {
            Err(Errno::EINTR) => take().map(Some).ok_or(Errno::EINTR),
            other => other,
        };
        send::change(self.task, |own| own.awaited = 0);
        let taken = found?.ok_or(Errno::EAGAIN)?;
        if info != 0 {
            self.memory.write(VirtAddr(info), &taken.bytes())?;
        }
        Ok(u64::from(taken.signal))
    }

    pub(super) fn rt_sigqueueinfo(&self) -> Answer {
        let [pid, signal, info, ..] = self.arguments;
        let pid = pid as u32;
        let info = self.info_from(signal, info, pid == self.process().id)?;
        let process = table::process(pid).ok_or(Errno::ESRCH)?;
        if !self.may_signal(&process) {
            return Err(Errno::EPERM);
        }
        sent(info.map(|info| send::to_process(&process, info)))
    }

    /// `pidfd_send_signal`: as `kill`, or as `rt_sigqueueinfo` with what the program says about the cause.
    pub(super) fn pidfd_send_signal(&self) -> Answer {
        let [descriptor, signal, at, flags, ..] = self.arguments;
        if flags as u32 != 0 {
            return Err(Errno::EINVAL);
        }
        let process = self.process_of(descriptor)?.0;
        let info = match at {
            0 => self.signal_or_zero(signal)?.map(|signal| SigInfo::user(signal, self.process())),
            at if self.memory.read_u32(VirtAddr(at))? != signal as u32 => return Err(Errno::EINVAL),
            at => self.info_from(signal, at, process.id == self.process().id)?,
        };
        // Its number may be another process's, once its parent has waited for it.
        if !table::is_known(&process) {
            return Err(Errno::ESRCH);
        }
        if !self.may_signal(&process) {
            return Err(Errno::EPERM);
        }
        sent(info.map(|info| send::to_process(&process, info)))
    }

    pub(super) fn rt_tgsigqueueinfo(&self) -> Answer {
        let [pid, tid, signal, info, ..] = self.arguments;
        let info = self.info_from(signal, info, tid as u32 == self.task.id())?;
        self.signal_thread(Some(pid as u32), tid as u32, info)
    }

    /// A signal with what the program says about its cause; `None` for signal 0, which is not sent.
    fn info_from(&self, signal: u64, at: u64, to_itself: bool) -> Result<Option<SigInfo>, Errno> {
        let mut bytes = [0; INFO_BYTES];
        self.memory.read(VirtAddr(at), &mut bytes)?;
        let info = self.signal_or_zero(signal)?.map(|signal| SigInfo::from_bytes(signal, &bytes));
        if !to_itself && SigInfo::from_bytes(0, &bytes).claims_kernel() {
            return Err(Errno::EPERM);
        }
        Ok(info)
    }

    pub(super) fn sigaltstack(&self) -> Answer {
        let [new, old, ..] = self.arguments;
        // SAFETY: X3: the task is the running one, and its program does not run.
        let rsp = unsafe { self.task.user() }.registers.rsp;
        let before = self.task.signals.0.lock().alt_stack;
        let on_it = before.bytes != 0 && before.is_used(rsp);
        if new != 0 {
            let [start, flags, bytes] = self.load_words(new)?;
            let flags = flags as u32;
            let disable = flags & !abi::SS_AUTODISARM == abi::SS_DISABLE;
            if on_it {
                return Err(Errno::EPERM);
            }
            if !disable && flags & !(abi::SS_AUTODISARM | abi::SS_ONSTACK) != 0 {
                return Err(Errno::EINVAL);
            }
            if !disable && bytes < u64::from(abi::MINSIGSTKSZ) {
                return Err(Errno::ENOMEM);
            }
            let stack = AltStack { start, bytes, flags: flags & abi::SS_AUTODISARM };
            self.task.signals.0.lock().alt_stack = if disable { AltStack::default() } else { stack };
        }
        let flags = match before.bytes {
            0 => abi::SS_DISABLE,
            _ if on_it => abi::SS_ONSTACK,
            _ => 0,
        };
        self.store_words(old, &[before.start, u64::from(flags | before.flags), before.bytes])?;
        Ok(0)
    }

    pub(super) fn kill(&self) -> Answer {
        let [pid, signal, ..] = self.arguments;
        let signal = self.signal_or_zero(signal)?;
        let info = signal.map(|signal| SigInfo::user(signal, self.process()));
        let (own_id, own_group) = (self.process().id, self.process().group.load(Ordering::Relaxed));
        let of_group = |process: &Process, id| process.group.load(Ordering::Relaxed) == id;
        let is_meant = |process: &Process| match pid as i32 {
            0 => of_group(process, own_group),
            -1 => process.id != table::INIT && process.id != own_id,
            number if number < 0 => of_group(process, number.unsigned_abs()),
            number => process.id == number as u32,
        };
        let mut answer = Err(Errno::ESRCH);
        let mut gets = |process: &Process| {
            let (meant, may) = (is_meant(process), self.may_signal(process));
            if meant {
                answer = if may || answer.is_ok() { Ok(0) } else { Err(Errno::EPERM) };
            }
            meant && may
        };
        if pid as i32 > 0 {
            let process = table::process(pid as u32).ok_or(Errno::ESRCH)?;
            if gets(&process)
                && let Some(info) = info
            {
                send::to_process(&process, info);
            }
        } else {
            send::to_each(info, gets);
        }
        answer
    }

    pub(super) fn tkill(&self) -> Answer {
        let [tid, signal, ..] = self.arguments;
        self.signal_thread(None, tid as u32, self.info_of_thread(signal)?)
    }

    pub(super) fn tgkill(&self) -> Answer {
        let [pid, tid, signal, ..] = self.arguments;
        self.signal_thread(Some(pid as u32), tid as u32, self.info_of_thread(signal)?)
    }

    fn info_of_thread(&self, signal: u64) -> Result<Option<SigInfo>, Errno> {
        Ok(self.signal_or_zero(signal)?.map(|signal| SigInfo::thread(signal, self.process())))
    }

    fn signal_thread(&self, pid: Option<u32>, tid: u32, info: Option<SigInfo>) -> Answer {
        if tid as i32 <= 0 {
            return Err(Errno::EINVAL);
        }
        let task = table::task(tid).ok_or(Errno::ESRCH)?;
        if pid.is_some_and(|pid| pid != task.process.id) {
            return Err(Errno::ESRCH);
        }
        if !self.may_signal(&task.process) {
            return Err(Errno::EPERM);
        }
        sent(info.map(|info| send::to_task(&task, info)))
    }

    fn may_signal(&self, process: &Process) -> bool {
        self.process().has(Right::Kill) || self.process().credentials().may_signal(&process.credentials())
    }

    fn load_set(&self, at: u64) -> Result<SignalSet, Errno> {
        self.memory.read_u64(VirtAddr(at))
    }

    fn signal_or_zero(&self, signal: u64) -> Result<Option<u32>, Errno> {
        if signal as u32 == 0 { Ok(None) } else { self.signal_of(signal).map(Some) }
    }

    fn signal_of(&self, signal: u64) -> Result<u32, Errno> {
        let signal = signal as u32;
        (1..=COUNT).contains(&signal).then_some(signal).ok_or(Errno::EINVAL)
    }
}

/// The result of sending a signal, if one was sent.
fn sent(sent: Option<Sent>) -> Answer {
    if sent == Some(Sent::Full) { Err(Errno::EAGAIN) } else { Ok(0) }
}
