//! `shmget`, `shmat`, `shmdt` and `shmctl`

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;
use quire::addr::{VirtAddr, VirtRange};
use quire::arch::Protection;
use quire::limits::FRAME_SIZE;
use quire::vm::{Backing, MapRequest, Placement, Sharing};

use super::mmap::huge_size;
use crate::errno::Errno;
use crate::ipc::{self, Attaching, Created, New, Owner, Segment};
use crate::memory::manager::manager;
use crate::observe::{SETTINGS, commit_allows, may_overcommit};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{EXECUTE, READ, Right, WRITE};

const IPC_CREAT: u32 = 0o1000;
const IPC_EXCL: u32 = 0o2000;
const SHM_HUGETLB: u32 = 0o4000;
/// A flag of `shmget`.
const SHM_NORESERVE: u32 = 0o10000;

/// A flag of `shmat`, as all that follow.
const SHM_RDONLY: u32 = 0o10000;
const SHM_RND: u32 = 0o20000;
const SHM_REMAP: u32 = 0o40000;
const SHM_EXEC: u32 = 0o10_0000;

const IPC_RMID: u32 = 0;
const IPC_SET: u32 = 1;
const IPC_STAT: u32 = 2;
const IPC_INFO: u32 = 3;
const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
const SHM_STAT: u32 = 13;
const SHM_INFO: u32 = 14;
const SHM_STAT_ANY: u32 = 15;

impl Call<'_> {
    /// `shmget`
    pub(in crate::syscall) fn shmget(&self) -> Answer {
        let [key, bytes, flags, ..] = self.arguments;
        let (key, flags) = (key as u32, flags as u32);
        ipc::collect();
        if let Some(segment) = ipc::find(key) {
            return self.existing(&segment, bytes, flags);
        }
        if key != 0 && flags & IPC_CREAT == 0 {
            return Err(Errno::ENOENT);
        }
        let [most, most_pages, _] = limits();
        if bytes == 0 || bytes > most {
            return Err(Errno::EINVAL);
        }
        if bytes.div_ceil(FRAME_SIZE).saturating_add(ipc::pages()) > most_pages {
            return Err(Errno::ENOSPC);
        }
        let log = flags >> abi::MAP_HUGE_SHIFT & abi::MAP_HUGE_MASK;
        let huge = match flags & SHM_HUGETLB != 0 {
            true => Some(huge_size(log).ok_or(Errno::EINVAL)?),
            false => None,
        };
        if huge.is_some() && !self.may_use_huge_pages() {
            return Err(Errno::EPERM);
        }
        let reserve = flags & SHM_NORESERVE == 0;
        let is_charged = huge.is_none() && (reserve || !may_overcommit());
        if is_charged && !commit_allows(bytes) {
            return Err(Errno::ENOMEM);
        }
        let new = New { key, creator: self.process().id, bytes, mode: flags, huge, reserve };
        match ipc::create(new)? {
            Created::New(segment) => Ok(u64::from(segment.id)),
            Created::Other(segment) => self.existing(&segment, bytes, flags),
        }
    }

    /// `shmat`
    pub(in crate::syscall) fn shmat(&self) -> Answer {
        let [id, addr, flags, ..] = self.arguments;
        let (flags, mut addr) = (flags as u32, VirtAddr(addr));
        let has = |flag| flags & flag != 0;
        if addr.0 != 0 && !addr.is_aligned(FRAME_SIZE) {
            addr = addr.align_down(FRAME_SIZE);
            if !has(SHM_RND) || addr.0 == 0 && has(SHM_REMAP) {
                return Err(Errno::EINVAL);
            }
        } else if addr.0 == 0 && has(SHM_REMAP) {
            return Err(Errno::EINVAL);
        }
        let segment = Attaching::begin(id as u32)?;
        let executes = if has(SHM_EXEC) { EXECUTE } else { 0 };
        let stores = if has(SHM_RDONLY) { 0 } else { WRITE };
        segment.check(&self.process().credentials(), READ | stores | executes)?;
        let (mut prot, forbid) = match has(SHM_RDONLY) {
            true => (Protection::READ, Protection::WRITE),
            false => (Protection::READ | Protection::WRITE, Protection::NONE),
        };
        if has(SHM_EXEC) {
            prot = prot | Protection::EXEC;
        }
        let placement = match (addr.0, has(SHM_REMAP)) {
            (0, _) => Placement::Hint,
            (_, true) => Placement::Fixed,
            (_, false) => Placement::FixedNoReplace,
        };
        let at = self.space.mmap(&MapRequest {
            addr,
            len: segment.mapped_bytes(),
            prot,
            forbid,
            placement,
            sharing: Sharing::Shared,
            backing: Backing::File { file: &segment.file, page_offset: 0 },
            ..MapRequest::default()
        });
        // Linux' name for a place that is taken.
        let at = at
            .map_err(Errno::from)
            .map_err(|errno| if errno == Errno::EEXIST { Errno::EINVAL } else { errno })?;
        segment.note_attached(self.process().id);
        Ok(at.0)
    }

    /// `shmdt`: unmaps what is left of the first attachment at the address.
    pub(in crate::syscall) fn shmdt(&self) -> Answer {
        let start = self.addr(0);
        if !start.is_aligned(FRAME_SIZE) {
            return Err(Errno::EINVAL);
        }
        let (segment, parts) = self.attachment(start).ok_or(Errno::EINVAL)?;
        for part in parts {
            self.space.munmap(part.start, part.len())?;
        }
        segment.note_detached(self.process().id);
        drop(segment);
        ipc::collect();
        Ok(0)
    }

    /// The segment that is attached at an address, and the parts of it that are still mapped.
    fn attachment(&self, start: VirtAddr) -> Option<(Arc<Segment>, Vec<VirtRange>)> {
        let (mut segment, mut parts, mut at) = (None, Vec::new(), start);
        while let Some(vma) = self.space.next_vma(at) {
            at = vma.range.end;
            let end = segment
                .as_ref()
                .map_or(u64::MAX, |segment: &Arc<Segment>| start.0.saturating_add(segment.mapped_bytes()));
            if vma.range.start.0 >= end {
                break;
            }
            let Some((_, page)) = vma.file else { continue };
            let is_from_start = vma.range.start.0.checked_sub(start.0) == Some(page.wrapping_mul(FRAME_SIZE));
            if !is_from_start {
                continue;
            }
            let here = ipc::with_file(vma.file_number);
            match (&segment, here) {
                (None, Some(here)) => segment = Some(here),
                (Some(segment), Some(here)) if here.id == segment.id => {}
                _ => continue,
            }
            parts.push(vma.range);
        }
        Some((segment?, parts))
    }

    /// `shmctl`
    pub(in crate::syscall) fn shmctl(&self) -> Answer {
        let [id, command, buffer, ..] = self.arguments;
        if (id as i32) < 0 {
            return Err(Errno::EINVAL);
        }
        let own = self.process().credentials();
        let check_owned = |segment: &Segment, right: Right| {
            if segment.is_owned(&own, right) { Ok(()) } else { Err(Errno::EPERM) }
        };
        match command as u32 {
            IPC_INFO => {
                let [most, most_pages, most_segments] = limits();
                let words = [most, 1, most_segments, most_segments, most_pages, 0, 0, 0, 0];
                self.store_structure(buffer, &words)?;
                Ok(ipc::totals().last_slot)
            }
            SHM_INFO => {
                let totals = ipc::totals();
                let words = [u64::from(totals.segments), totals.pages, totals.resident, 0, 0, 0];
                self.store_structure(buffer, &words)?;
                Ok(totals.last_slot)
            }
            command @ (SHM_STAT | SHM_STAT_ANY) => {
                let segment = ipc::slot(id)?;
                if command == SHM_STAT {
                    segment.check(&own, READ)?;
                }
                self.store_structure(buffer, &segment.words())?;
                Ok(u64::from(segment.id))
            }
            IPC_STAT => {
                let segment = ipc::get(id as u32)?;
                segment.check(&own, READ)?;
                self.store_structure(buffer, &segment.words())?;
                Ok(0)
            }
            IPC_SET => {
                let [key_uid, gid_cuid, cgid_mode]: [u64; 3] = self.load_words(buffer)?;
                let owner = Owner { uid: (key_uid >> 32) as u32, gid: gid_cuid as u32 };
                let segment = ipc::get(id as u32)?;
                check_owned(&segment, Right::Administrate)?;
                segment.set(owner, (cgid_mode >> 32) as u32);
                Ok(0)
            }
            IPC_RMID => {
                let segment = ipc::get(id as u32)?;
                check_owned(&segment, Right::Administrate)?;
                ipc::remove(&segment);
                drop(segment);
                // The reference that removed it is gone now.
                ipc::collect();
                Ok(0)
            }
            lock @ (SHM_LOCK | SHM_UNLOCK) => {
                let segment = ipc::get(id as u32)?;
                check_owned(&segment, Right::LockMemory)?;
                if lock == SHM_LOCK {
                    self.lock_limit()?;
                }
                segment.set_locked(lock == SHM_LOCK);
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Whether the caller may take huge pages for a segment.
    fn may_use_huge_pages(&self) -> bool {
        let group = manager().huge_pools().shm_group() as u32;
        self.process().has(Right::LockMemory) || self.process().credentials().is_in(group)
    }

    /// What `shmget` says of a key that is in use.
    fn existing(&self, segment: &Segment, bytes: u64, flags: u32) -> Answer {
        if flags & IPC_CREAT != 0 && flags & IPC_EXCL != 0 {
            return Err(Errno::EEXIST);
        }
        if bytes > segment.bytes {
            return Err(Errno::EINVAL);
        }
        segment.check(
            &self.process().credentials(),
            (flags | flags >> 3 | flags >> 6) & (READ | WRITE | EXECUTE),
        )?;
        Ok(u64::from(segment.id))
    }

    fn store_structure(&self, at: u64, words: &[u64]) -> Result<(), Errno> {
        self.store_result(at, words)
    }
}

/// The largest segment, the most pages of all together, and the most segments.
fn limits() -> [u64; 3] {
    [&SETTINGS.shmmax, &SETTINGS.shmall, &SETTINGS.shmmni].map(|limit| limit.load(Ordering::Relaxed))
}
