//! With the option `faults=log`, a line of the log for each program at its end, with its faults by kind.
//! `kernel/test-recordings` compares them with the faults of a replay.

use spin::Once;

use super::process;
use crate::boot::command;
use crate::device::serial::log;
use crate::task::process::Process;

static IS_WANTED: Once<bool> = Once::new();

/// The process's program ends, or another one takes its place. The next line counts from here.
pub fn program_ends(process: &Process) {
    if !*IS_WANTED.call_once(|| command::option("faults") == Some("log")) {
        return;
    }
    let now = process.account.usage.fault_counts();
    let before = core::mem::replace(&mut *process.account.faults_before.lock(), now);
    let name = process::name(process, None);
    log!("faults of {} {}: {}", process.id, name.escape_ascii(), now.since(before));
}
