//! The processes of a recording: all descendants of the recorder, which is their subreaper.

use std::collections::{HashMap, HashSet};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::traced;

/// Repeats for processes that are forked while others get the signal.
const LOOKS: usize = 16;

/// A process of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) pid: Pid,
    /// Its process group.
    pub(super) group: Pid,
}

/// All living descendants of this process, without the tracer.
pub(super) fn members(tracer: Option<Pid>) -> Vec<Member> {
    let mut members = below(Pid::this());
    members.retain(|member| Some(member.pid) != tracer);
    members
}

/// All living descendants of a process.
pub(super) fn below(root: Pid) -> Vec<Member> {
    let mut children: HashMap<i32, Vec<Member>> = HashMap::new();
    for process in procfs::process::all_processes().into_iter().flatten().flatten() {
        if let Ok(stat) = process.stat()
            // A first thread that has ended stays until the other threads have ended.
            && !(stat.state == 'Z' && stat.num_threads <= 1)
        {
            let member = Member { pid: Pid::from_raw(stat.pid), group: Pid::from_raw(stat.pgrp) };
            children.entry(stat.ppid).or_default().push(member);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        let born = children.remove(&parent.as_raw()).unwrap_or_default();
        parents.extend(born.iter().map(|member| member.pid));
        found.extend(born);
    }
    found
}

/// Whether this process has children, ended or not.
pub(super) fn has_children() -> bool {
    traced::zombie() != Err(Errno::ECHILD)
}

/// Sends a signal to the wanted processes, and to those that they start meanwhile.
pub(super) fn send_to_all(signal: Signal, tracer: Option<Pid>, wanted: impl Fn(&Member) -> bool) {
    let mut told = HashSet::new();
    for _ in 0..LOOKS {
        let fresh: Vec<Member> =
            members(tracer).into_iter().filter(|member| told.insert(member.pid)).collect();
        if fresh.is_empty() {
            return;
        }
        let pids: Vec<Pid> = fresh.iter().filter(|member| wanted(member)).map(|member| member.pid).collect();
        send(signal, &pids);
    }
}

/// Sends a signal. A process that has ended, or has become another user's, needs none.
pub(super) fn send(signal: Signal, pids: &[Pid]) {
    for pid in pids {
        let _ = kill(*pid, signal);
    }
}
