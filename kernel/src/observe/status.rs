//! `/proc/PID/status`.

use alloc::sync::Arc;
use core::fmt::{self, Write};
use core::sync::atomic::Ordering;

use quire::limits::MAX_NODES;
use quire_interop::proc::Sizes;

use super::Thread;
use super::cpu::{write_list, write_mask};
use super::node::nodes;
use super::process::{name, task_of};
use super::text::write_name;
use crate::cpu::area;
use crate::task::credentials::{ALL, Credentials};
use crate::task::process::Process;
use crate::task::signal::{COUNT, SignalSet};
use crate::task::{Task, sched};

/// What a thread of a process does: the letter and the word.
pub(super) fn state(process: &Process, thread: Thread) -> (char, &'static str) {
    match &task_of(process, thread) {
        // A process may live longer than its first thread.
        None => ('Z', "zombie"),
        Some(_) if process.stopped.load(Ordering::Relaxed) => ('T', "stopped"),
        Some(task) if sched::is_parked(task) => ('S', "sleeping"),
        Some(_) => ('R', "running"),
    }
}

pub(super) fn status(process: &Arc<Process>, thread: Thread, out: &mut dyn Write) -> fmt::Result {
    let (letter, word) = state(process, thread);
    out.write_str("Name:\t")?;
    write_name(out, &name(process, thread))?;
    let number = thread.unwrap_or(process.id);
    let (id, parent) = (process.id, process.parent().map_or(0, |parent| parent.id));
    writeln!(
        out,
        "\nState:\t{letter} ({word})\nTgid:\t{id}\nNgid:\t0\nPid:\t{number}\nPPid:\t{parent}\nTracerPid:\t0"
    )?;
    let own = process.credentials();
    for (name, [real, effective, saved]) in [("Uid", own.users), ("Gid", own.groups)] {
        writeln!(out, "{name}:\t{real}\t{effective}\t{saved}\t{effective}")?;
    }
    out.write_str("Groups:\t")?;
    own.others.iter().try_for_each(|group| write!(out, "{group} "))?;
    out.write_str("\n")?;
    let (group, session) = (&process.group, &process.session);
    writeln!(out, "NStgid:\t{id}\nNSpid:\t{id}\nNSpgid:\t{}", group.load(Ordering::Relaxed))?;
    writeln!(out, "NSsid:\t{}\nKthread:\t0", session.load(Ordering::Relaxed))?;
    if let Some(space) = process.space_handle() {
        let sizes = Sizes::of(&space);
        let code = process.account.program.lock().code.clone();
        sizes.status(out, &code, process.account.peak(&sizes))?;
    }
    let threads = process.threads.lock().len().max(1);
    let dumps = u8::from(process.dump.is_written());
    writeln!(out, "CoreDumping:\t{dumps}\nTHP_enabled:\t1\nThreads:\t{threads}")?;
    signals(process, thread, out)?;
    capabilities(&own, out)?;
    let no_new_privs = process.account.no_new_privs.load(Ordering::Relaxed);
    writeln!(out, "NoNewPrivs:\t{}\nSeccomp:\t0", u8::from(no_new_privs))?;
    masks(out)
}

/// The signals that were sent to a task alone, and those that it blocks.
pub(super) fn own_signals(task: Option<&Task>) -> [SignalSet; 2] {
    task.map_or([0; 2], |task| {
        let own = task.signals.0.lock();
        [own.pending.set(), own.mask]
    })
}

fn signals(process: &Process, thread: Thread, out: &mut dyn Write) -> fmt::Result {
    let [pending, blocked] = own_signals(task_of(process, thread).as_deref());
    let shared = process.signals.pending.lock().set();
    let [ignored, caught] = actions(process);
    writeln!(out, "SigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}")?;
    writeln!(out, "SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}")
}

/// The signals that are ignored, and those for which there is a handler.
pub(super) fn actions(process: &Process) -> [SignalSet; 2] {
    let (mut ignored, mut caught) = (0, 0);
    for signal in 1..=COUNT {
        match process.signals.action(signal).handler {
            // SIG_DFL
            0 => {}
            // SIG_IGN
            1 => ignored |= 1 << (signal - 1),
            _ => caught |= 1 << (signal - 1),
        }
    }
    [ignored, caught]
}

fn capabilities(own: &Credentials, out: &mut dyn Write) -> fmt::Result {
    let (inherited, may, uses) = (own.inheritable, own.permitted, own.effective);
    for (name, set) in
        [("CapInh", inherited), ("CapPrm", may), ("CapEff", uses), ("CapBnd", ALL), ("CapAmb", 0)]
    {
        writeln!(out, "{name}:\t{set:016x}")?;
    }
    Ok(())
}

fn masks(out: &mut dyn Write) -> fmt::Result {
    let cpus = || 0..area::count() as u64;
    out.write_str("Cpus_allowed:\t")?;
    write_mask(out, cpus(), area::count())?;
    out.write_str("\nCpus_allowed_list:\t")?;
    write_list(out, cpus())?;
    out.write_str("\nMems_allowed:\t")?;
    write_mask(out, nodes().map(u64::from), MAX_NODES)?;
    out.write_str("\nMems_allowed_list:\t")?;
    write_list(out, nodes().map(u64::from))?;
    out.write_char('\n')
}
