//! The files of a process's folder, `/proc/PID`.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::ops::Range;
use core::sync::atomic::Ordering;

use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;
use quire_interop::proc::{self, Sizes};

use super::names::ProcessNames;
use super::text::write_bytes;
use super::{ProcessContent, ProcessControl, ProcessFile, ProgramLayout, Thread};
use super::{limits, number, oom, stat, status};
use crate::errno::Errno;
use crate::files::generated;
use crate::memory::forced::ForcedMemory;
use crate::memory::manager::{Space, manager};
use crate::memory::user::UserMemory;
use crate::task::credentials::{Right, check};
use crate::task::process::Process;
use crate::task::{Task, sched};

const fn file(name: &'static str, mode: u32, content: ProcessContent) -> ProcessFile {
    ProcessFile { name, mode, content, control: None }
}

const fn text(name: &'static str, write: fn(&Arc<Process>, &mut dyn Write) -> fmt::Result) -> ProcessFile {
    file(name, 0o444, ProcessContent::Text(write))
}

const fn of_space(
    name: &'static str,
    write: fn(&ProgramLayout, &Space, &mut dyn Write) -> fmt::Result,
) -> ProcessFile {
    file(name, 0o444, ProcessContent::Space(write))
}

const fn writable(file: ProcessFile, mode: u32, control: ProcessControl) -> ProcessFile {
    ProcessFile { mode, control: Some(control), ..file }
}

pub(super) static FILES: &[ProcessFile] = &[
    of_space("maps", |program, space, out| proc::maps(out, space, &ProcessNames::of(program))),
    of_space("smaps", |program, space, out| proc::smaps(out, manager(), space, &ProcessNames::of(program))),
    of_space("smaps_rollup", |_, space, out| proc::smaps_rollup(out, space)),
    of_space("numa_maps", |program, space, out| {
        proc::numa_maps(out, manager(), space, &ProcessNames::of(program))
    }),
    file("status", 0o444, ProcessContent::Thread(status::status)),
    file("stat", 0o444, ProcessContent::Thread(stat::stat)),
    text("statm", statm),
    text("cgroup", |process, out| generated::write_group(process, out)),
    text("limits", |process, out| {
        limits::limits(out, |resource| {
            process.limits.get(resource).map_or([0; 2], |limit| [limit.soft, limit.hard])
        })
    }),
    text("mounts", |_, out| generated::mounts(out)),
    text("mountinfo", |_, out| generated::mountinfo(out)),
    text("oom_score", |process, out| writeln!(out, "{}", oom::score(process))),
    writable(
        text("oom_score_adj", |process, out| {
            writeln!(out, "{}", process.account.oom_score_adj.load(Ordering::Relaxed))
        }),
        0o644,
        set_oom_score_adj,
    ),
    writable(
        text("coredump_filter", |process, out| {
            writeln!(out, "{:08x}", process.account.dump_filter.load(Ordering::Relaxed))
        }),
        0o644,
        set_dump_filter,
    ),
    writable(file("comm", 0o644, ProcessContent::Thread(comm)), 0o644, set_comm),
    file("syscall", 0o400, ProcessContent::Thread(call)),
    text("wchan", |_, out| out.write_str("0")),
    writable(file("clear_refs", 0o200, ProcessContent::Nothing), 0o200, clear_refs),
    file("cmdline", 0o444, ProcessContent::Whole(arguments)),
    file("environ", 0o400, ProcessContent::Memory(|program, space| strings(&program.environment, space))),
    file("auxv", 0o400, ProcessContent::Memory(|program, space| strings(&program.auxiliary, space))),
    file("mem", 0o600, ProcessContent::Both(memory, store)),
    file("pagemap", 0o400, ProcessContent::At(pagemap)),
];

fn statm(process: &Arc<Process>, out: &mut dyn Write) -> fmt::Result {
    let sizes = process.space_handle().map(|space| Sizes::of(&space)).unwrap_or_default();
    let code = process.account.program.lock().code.clone();
    sizes.statm(out, &code)
}

/// The task that a file is about: the first one for a process as a whole. `None` if it has ended.
pub(super) fn task_of(process: &Process, thread: Thread) -> Option<Arc<Task>> {
    let id = thread.unwrap_or(process.id);
    process.threads.lock().iter().find(|task| task.id() == id).cloned()
}

/// The name as text, without the zero byte. A process keeps it when its first thread has ended.
pub(super) fn name(process: &Process, thread: Thread) -> Vec<u8> {
    let name = task_of(process, thread).map_or_else(|| process.identity.lock().name, |task| task.name());
    name.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}

/// The call in which the task is, which reads this: its number and arguments, and where its program is. Others run or may
/// run at any time, which Linux shows so too.
fn call(process: &Arc<Process>, thread: Thread, out: &mut dyn Write) -> fmt::Result {
    let task = sched::current_ref();
    if thread.unwrap_or(process.id) != task.id() {
        return out.write_str("running\n");
    }
    let [number, words @ ..] = task.call_words();
    write!(out, "{number}")?;
    words.iter().try_for_each(|word| write!(out, " {word:#x}"))?;
    out.write_str("\n")
}

fn comm(process: &Arc<Process>, thread: Thread, out: &mut dyn Write) -> fmt::Result {
    write_bytes(out, &name(process, thread))?;
    out.write_char('\n')
}

fn set_comm(process: &Arc<Process>, thread: Thread, text: &str) -> Result<(), Errno> {
    let mut name = [0; 16];
    let bytes = text.split('\n').next().unwrap_or_default().as_bytes();
    let length = bytes.len().min(name.len() - 1);
    name[..length].copy_from_slice(&bytes[..length]);
    task_of(process, thread).ok_or(Errno::ESRCH)?.set_name(name);
    Ok(())
}

fn set_oom_score_adj(process: &Arc<Process>, _thread: Thread, text: &str) -> Result<(), Errno> {
    let adj =
        text.trim().parse::<i32>().ok().filter(|adj| (-1000..=1000).contains(adj)).ok_or(Errno::EINVAL)?;
    let may_lower = check(Right::ExceedLimits).is_ok();
    if !may_lower && adj < process.account.least_adj.load(Ordering::Relaxed) {
        return Err(Errno::EACCES);
    }
    if may_lower {
        process.account.least_adj.store(adj, Ordering::Relaxed);
    }
    process.account.oom_score_adj.store(adj, Ordering::Relaxed);
    Ok(())
}

fn set_dump_filter(process: &Arc<Process>, _thread: Thread, text: &str) -> Result<(), Errno> {
    process.account.dump_filter.store(number(text)? as u32 & DUMP_FILTER_BITS, Ordering::Relaxed);
    Ok(())
}

/// Forgets what is known of the past: 4 which pages were stored to, 5 how much memory there was at most. Marks of
/// accesses cannot be cleared.
fn clear_refs(process: &Arc<Process>, _thread: Thread, text: &str) -> Result<(), Errno> {
    let what = number(text)?;
    let Some(space) = process.space_handle() else { return Err(Errno::ESRCH) };
    match what {
        4 => clear_soft_dirty(&space),
        5 => {
            process.account.reset_peak();
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The bits that `coredump_filter` has.
const DUMP_FILTER_BITS: u32 = 0x1ff;
/// The bits of a word of `pagemap` that are a frame.
const FRAME_OF_PAGE: u64 = (1 << 55) - 1;

fn clear_soft_dirty(space: &Space) -> Result<(), Errno> {
    let mut at = VirtAddr(0);
    while let Some(vma) = space.next_vma(at) {
        at = vma.range.end;
        space.clear_soft_dirty(vma.range.start, vma.range.len())?;
    }
    Ok(())
}

/// Where pages are in memory is shown to those that administrate the machine.
fn pagemap(space: &Space, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let count = proc::read_pagemap(space, offset, bytes).map_err(|_| Errno::EINVAL)?;
    if check(Right::Administrate).is_err() {
        for word in bytes[..count].as_chunks_mut::<8>().0 {
            *word = (u64::from_le_bytes(*word) & !FRAME_OF_PAGE).to_le_bytes();
        }
    }
    Ok(count)
}

/// The program's memory by its addresses.
fn memory(space: &Space, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    by_pages(space, offset, bytes.len(), |other, at, part| other.read(at, &mut bytes[part]))
}

/// Stores to it, if it is private also where the program itself may not.
fn store(space: &Space, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    by_pages(space, offset, bytes.len(), |other, at, part| other.write(at, &bytes[part]))
}

/// Copies up to the first page that cannot be used.
fn by_pages(
    space: &Space,
    offset: u64,
    bytes: usize,
    mut copy: impl FnMut(&ForcedMemory<'_>, VirtAddr, Range<usize>) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let other = ForcedMemory::of(space);
    let mut done = 0;
    while done < bytes {
        let at = offset.checked_add(done as u64).ok_or(Errno::EIO)?;
        let part = (bytes - done).min((FRAME_SIZE - at % FRAME_SIZE) as usize);
        match copy(&other, VirtAddr(at), done..done + part) {
            Ok(()) => done += part,
            Err(_) if done > 0 => break,
            Err(_) => return Err(Errno::EIO),
        }
    }
    Ok(done)
}

/// What stands in a part of the program's memory now: it may have changed its arguments to be seen here.
fn strings(range: &Range<VirtAddr>, space: &Space) -> Result<Vec<u8>, Errno> {
    let length = (range.end.0 - range.start.0) as usize;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(length, 0);
    UserMemory::of_other(sched::current_ref().space(), space).read(range.start, &mut bytes)?;
    Ok(bytes)
}

fn arguments(process: &Arc<Process>) -> Result<Vec<u8>, Errno> {
    let Some(space) = process.space_handle() else { return Ok(Vec::new()) };
    let range = process.account.program.lock().arguments.clone();
    strings(&range, &space)
}
