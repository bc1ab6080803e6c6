//! By what programs look at memory: the files of `/proc`, and of `/sys` as far as they are about memory and CPUs.
//!
//! Here is what stands in the files, and what a write to one does. The file system that shows them takes the lists:
//! [`machine_files`] by path, [`process_files`] for each process's folder. The texts about Quire's memory are those
//! of `quire_interop::proc`.
//!
//! A number that this kernel does not keep is left out, or 0 where a line has a fixed number of fields.

mod account;
pub mod commit;
mod cpu;
mod fault_log;
mod hugetlb;
mod limits;
mod machine;
pub mod mapped_files;
mod memory;
mod names;
mod node;
mod oom;
mod process;
mod settings;
mod stat;
mod status;
mod sysctl;
mod text;
mod thp;
pub mod usage;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::errno::Errno;
use crate::memory::manager::Space;
use crate::task::process::Process;

pub use account::{Account, ProgramLayout};
pub use commit::{allows as commit_allows, allows_fork, may_overcommit};
pub use fault_log::program_ends;
pub use names::mapped_path;
pub use oom::badness;
pub use settings::{SETTINGS, VERSION};
pub use stat::note_idle;
pub use text::{Text, write_bytes};

/// Writes the text of a file.
pub type Writer = Box<dyn Fn(&mut dyn Write) -> Result<(), Errno> + Send + Sync>;
/// Does what a text that is written to a file asks for.
pub type Control = Box<dyn Fn(&str) -> Result<(), Errno> + Send + Sync>;
/// Reads bytes from an offset; returns how many.
pub type Bytes = fn(u64, &mut [u8]) -> Result<usize, Errno>;

/// A file about the machine.
pub struct MachineFile {
    /// Its path.
    pub path: String,
    /// The permissions.
    pub mode: u32,
    /// Its text, made anew for each reader.
    pub text: Option<Writer>,
    /// What a write does.
    pub control: Option<Control>,
    /// For files of words: reads at an offset, instead of `text`.
    pub bytes: Option<Bytes>,
}

/// Reads bytes about a program's memory from an offset; returns how many.
pub type SpaceBytes = fn(&Space, u64, &mut [u8]) -> Result<usize, Errno>;
/// Stores bytes at an offset; returns how many.
pub type SpaceStore = fn(&Space, u64, &[u8]) -> Result<usize, Errno>;
/// Does what a text that is written to a process's file asks for.
pub type ProcessControl = fn(&Arc<Process>, Thread, &str) -> Result<(), Errno>;
/// The number of the thread that a file of its folder is about; none for the process as a whole.
pub type Thread = Option<u32>;

/// What stands in a file of a process's folder.
pub enum ProcessContent {
    /// A text, made anew for each reader.
    Text(fn(&Arc<Process>, &mut dyn Write) -> fmt::Result),
    /// The same, which differs for a thread.
    Thread(fn(&Arc<Process>, Thread, &mut dyn Write) -> fmt::Result),
    /// A text about the address space that the process had when the file was opened, for those that may trace it; empty
    /// when no process has that any more. Where its program is in it stands beside it.
    Space(fn(&ProgramLayout, &Space, &mut dyn Write) -> fmt::Result),
    /// Bytes, made anew for each reader.
    Whole(fn(&Arc<Process>) -> Result<Vec<u8>, Errno>),
    /// The same, about the memory that the process had when the file was opened, as all that follow.
    Memory(fn(&ProgramLayout, &Space) -> Result<Vec<u8>, Errno>),
    /// Bytes that are read at an offset.
    At(SpaceBytes),
    /// Bytes that are read at an offset, and written there.
    Both(SpaceBytes, SpaceStore),
    /// Nothing can be read.
    Nothing,
}

/// A file in the folder of each process, `/proc/PID`.
pub struct ProcessFile {
    /// Its name.
    pub name: &'static str,
    /// The permissions.
    pub mode: u32,
    /// What stands in it.
    pub content: ProcessContent,
    /// What a write does.
    pub control: Option<ProcessControl>,
}

/// Hands each file about the machine to `each`. Nodes, CPUs and page sizes do not change.
pub fn machine_files(each: &mut dyn FnMut(MachineFile)) {
    let mut list = List(each);
    machine::add(&mut list);
    memory::add(&mut list);
    sysctl::add(&mut list);
    hugetlb::add(&mut list);
    thp::add(&mut list);
    node::add(&mut list);
    cpu::add(&mut list);
}

/// The files of each process's folder.
pub fn process_files() -> &'static [ProcessFile] {
    process::FILES
}

/// Takes the files that are listed.
struct List<'l>(&'l mut dyn FnMut(MachineFile));

impl List<'_> {
    /// Adds a file. One function for all, since a copy for each of a hundred files is 8 KiB of code that runs once.
    #[inline(never)]
    fn add(
        &mut self,
        path: &str,
        mode: u32,
        text: Option<Writer>,
        control: Option<Control>,
        bytes: Option<Bytes>,
    ) {
        (self.0)(MachineFile { path: path.into(), mode, text, control, bytes });
    }

    /// Adds a file that can only be read.
    fn text(
        &mut self,
        path: impl AsRef<str>,
        write: impl Fn(&mut dyn Write) -> fmt::Result + Send + Sync + 'static,
    ) {
        self.add(path.as_ref(), 0o444, Some(writer(write)), None, None);
    }

    /// Adds a file that can be read and written.
    fn control(
        &mut self,
        path: impl AsRef<str>,
        write: impl Fn(&mut dyn Write) -> fmt::Result + Send + Sync + 'static,
        control: impl Fn(&str) -> Result<(), Errno> + Send + Sync + 'static,
    ) {
        self.add(path.as_ref(), 0o644, Some(writer(write)), Some(Box::new(control)), None);
    }

    /// Adds a file that can only be written.
    fn trigger(
        &mut self,
        path: impl AsRef<str>,
        control: impl Fn(&str) -> Result<(), Errno> + Send + Sync + 'static,
    ) {
        self.add(path.as_ref(), 0o200, None, Some(Box::new(control)), None);
    }

    /// Adds a file of words.
    fn words(&mut self, path: impl AsRef<str>, bytes: Bytes) {
        self.add(path.as_ref(), 0o400, None, None, Some(bytes));
    }
}

/// The text that `write` writes. It fails for want of memory only.
fn writer(write: impl Fn(&mut dyn Write) -> fmt::Result + Send + Sync + 'static) -> Writer {
    Box::new(move |out| write(out).map_err(|_| Errno::ENOMEM))
}

/// A number that was written to a file, with a line feed or without. Linux takes decimal and `0x`.
fn number(text: &str) -> Result<u64, Errno> {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| Errno::EINVAL)
}
