//! The files of `/proc` and `/sys`, by path, until a file system shows them.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::observe::{self, MachineFile, ProcessContent, Text};
use crate::task::process::Process;
use crate::task::{sched, table};

/// The bytes of a file, if there is one at this path.
pub fn bytes(path: &str) -> Option<Vec<u8>> {
    of_process(path).or_else(|| of_machine(path))
}

fn of_machine(path: &str) -> Option<Vec<u8>> {
    let file: MachineFile = observe::machine_files().into_iter().find(|file| file.path == path)?;
    let mut text = Text::default();
    file.text?(&mut text).ok()?;
    Some(text.into_bytes())
}

fn of_process(path: &str) -> Option<Vec<u8>> {
    let (folder, name) = path.strip_prefix("/proc/")?.split_once('/')?;
    let process: Arc<Process> = match folder {
        "self" => sched::current_ref().process.clone(),
        number => table::process(number.parse().ok()?)?,
    };
    let file = observe::process_files().iter().find(|file| file.name == name)?;
    match file.content {
        ProcessContent::Text(write) => Text::of(|out| write(&process, out)).ok(),
        ProcessContent::Whole(read) => read(&process).ok(),
        ProcessContent::At(_) | ProcessContent::Nothing => None,
    }
}
