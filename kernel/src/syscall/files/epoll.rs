//! Sets of files to wait for (`epoll(7)`).

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::slice;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use crate::errno::Errno;
use crate::files::anonymous;
use crate::files::epoll::{Epoll, Report};
use crate::files::open::OpenFile;
use crate::files::poll;
use crate::syscall::{Answer, Call};

/// `struct epoll_event`, which is packed: the events and eight bytes of the caller's.
const EVENT_BYTES: u64 = 12;
/// The most events of one call.
const MOST_EVENTS: u64 = i32::MAX as u64 / EVENT_BYTES;

impl Call<'_> {
    pub(in crate::syscall) fn epoll_create(&self) -> Answer {
        if self.arguments[0] as i32 <= 0 {
            return Err(Errno::EINVAL);
        }
        self.make_set(0)
    }

    pub(in crate::syscall) fn epoll_create1(&self) -> Answer {
        super::check_flags(self.arguments[0], abi::EPOLL_CLOEXEC)?;
        self.make_set(self.arguments[0] as u32)
    }

    fn make_set(&self, flags: u32) -> Answer {
        let file = anonymous::open(Box::new(Epoll::new()), "anon_inode:[eventpoll]", abi::O_RDWR);
        self.table().add(file, flags & abi::EPOLL_CLOEXEC != 0)
    }

    pub(in crate::syscall) fn epoll_ctl(&self) -> Answer {
        let [_, operation, descriptor, event, ..] = self.arguments;
        let removes = operation as u32 == abi::EPOLL_CTL_DEL;
        let (asked, data) = if removes { (0, 0) } else { self.load_event(event)? };
        let set = self.file(0)?;
        let file = self.file_of(descriptor)?;
        let epoll = set.file_as::<Epoll>().ok_or(Errno::EINVAL)?;
        if Arc::ptr_eq(&set, &file) {
            return Err(Errno::EINVAL);
        }
        let descriptor = u64::from(descriptor as u32);
        match operation as u32 {
            abi::EPOLL_CTL_ADD => epoll.add(descriptor, &file, asked, data)?,
            abi::EPOLL_CTL_MOD => epoll.change(descriptor, &file, asked, data)?,
            abi::EPOLL_CTL_DEL => epoll.remove(descriptor, &file)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    fn load_event(&self, at: u64) -> Result<Report, Errno> {
        let mut image = [0; EVENT_BYTES as usize];
        self.memory.read(VirtAddr(at), &mut image)?;
        let (events, data) = image.split_at(4);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        Ok((u32::from_le_bytes(events.try_into().expect("four bytes")), word(data)))
    }

    pub(in crate::syscall) fn epoll_wait(&self) -> Answer {
        let milliseconds = self.arguments[3] as i32;
        self.wait_for_set(u64::try_from(milliseconds).ok().map(|time| self.deadline_in(time * 1_000_000)))
    }

    pub(in crate::syscall) fn epoll_pwait(&self) -> Answer {
        let [_, _, _, _, mask, bytes] = self.arguments;
        self.with_mask(mask, bytes, || self.epoll_wait(), |_| {})
    }

    pub(in crate::syscall) fn epoll_pwait2(&self) -> Answer {
        let [_, _, _, timeout, mask, bytes] = self.arguments;
        let deadline = self.deadline(timeout)?;
        self.with_mask(mask, bytes, || self.wait_for_set(deadline), |_| {})
    }

    fn wait_for_set(&self, deadline: Option<u64>) -> Answer {
        let [_, events, most, ..] = self.arguments;
        if most as i32 <= 0 || u64::from(most as u32) > MOST_EVENTS {
            return Err(Errno::EINVAL);
        }
        let set: Arc<OpenFile> = self.file(0)?;
        let epoll = set.file_as::<Epoll>().ok_or(Errno::EINVAL)?;
        let scan = || {
            let reports = epoll.take_reports(most as u32 as usize)?;
            Ok((!reports.is_empty()).then_some(reports))
        };
        let reports = poll::wait(slice::from_ref(&set), deadline, scan)?.unwrap_or_default();
        for (index, (events_now, data)) in reports.iter().enumerate() {
            let mut image = [0; EVENT_BYTES as usize];
            image[..4].copy_from_slice(&events_now.to_le_bytes());
            image[4..].copy_from_slice(&data.to_le_bytes());
            let at = events.checked_add(index as u64 * EVENT_BYTES).ok_or(Errno::EFAULT)?;
            self.memory.write(VirtAddr(at), &image)?;
        }
        Ok(reports.len() as u64)
    }
}
