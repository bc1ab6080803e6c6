//! Files whose contents are made when they are read.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::Generated;
use super::folder::{attributes_of, take_number};
use super::process::check_trace;
use crate::errno::Errno;
use crate::files::io::{Chunk, Sink, Source};
use crate::files::node::{Attributes, Change, FsInfo, Kind, Node};
use crate::files::open::{File, Io, Opening};
use crate::memory::manager::Space;
use crate::observe::{MachineFile, ProcessContent, ProcessFile, ProgramLayout, Text, Thread};
use crate::task::process::Process;
use crate::task::sleep_lock::SleepLock;

/// A text of less is made at once, whatever is asked for.
const PAGE: usize = 4096;
/// The longest text that can be written.
const MOST_WRITTEN: usize = 4096;

/// What was made of the contents.
struct Made {
    bytes: Vec<u8>,
    is_whole: bool,
}

impl Made {
    /// The start of the next line, if the contents have changed so that `at` is inside one.
    fn line_from(&self, at: usize) -> usize {
        let is_inside = at > 0 && self.bytes.get(at - 1).is_some_and(|&byte| byte != b'\n');
        let rest = self.bytes.get(at..).unwrap_or(&[]);
        let line = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |end| end + 1);
        if is_inside { at + line } else { at }
    }
}

/// What an open file shows.
trait Contents: Send + Sync {
    /// Makes the contents, or the first lines of at least `enough` bytes. `None`: they are read at an offset.
    fn make(&self, enough: usize) -> Option<Result<Made, Errno>>;
    fn at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno>;
    /// Does what the bytes ask for, or stores some of them at the offset. Returns how many count as written.
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<usize, Errno>;
    /// Bytes are stored at the offset, so that many are stored part by part.
    fn has_offsets(&self) -> bool {
        false
    }
}

/// A file about the machine.
pub(super) struct MachineNode {
    fs: Generated,
    number: u64,
    file: MachineFile,
}

impl MachineNode {
    pub(super) fn new(fs: Generated, file: MachineFile) -> Self {
        Self::numbered(fs, take_number(), file)
    }

    /// The same with a number of the caller's.
    pub(super) fn numbered(fs: Generated, number: u64, file: MachineFile) -> Self {
        Self { fs, number, file }
    }
}

impl Contents for Arc<MachineNode> {
    fn make(&self, _enough: usize) -> Option<Result<Made, Errno>> {
        let text = self.file.text.as_ref()?;
        let mut made = Text::new();
        Some(text(&mut made).map(|()| Made { bytes: made.into_bytes(), is_whole: true }))
    }

    fn at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.file.bytes.map_or(Err(Errno::EINVAL), |read| read(offset, bytes))
    }

    fn store(&self, _offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.file.control.as_ref().ok_or(Errno::EINVAL)?(text_of(bytes)?)?;
        Ok(bytes.len())
    }
}

impl Node for MachineNode {
    fn attributes(&self) -> Attributes {
        Attributes::of_kernel(self.fs.fs, self.number, Kind::Regular, self.file.mode)
    }

    fn open(self: Arc<Self>, _opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        Ok(Box::new(GeneratedFile { contents: self, made: SleepLock::new(None) }))
    }

    /// What `open` with `O_TRUNC` asks for: the next write replaces the value anyway.
    fn truncate(&self, _bytes: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn fs_info(&self) -> FsInfo {
        self.fs.info()
    }
}

/// A file in the folder of a process.
pub(super) struct ProcessNode {
    fs: Generated,
    number: u64,
    process: Arc<Process>,
    thread: Thread,
    file: &'static ProcessFile,
}

impl ProcessNode {
    /// A file of a process, or of this thread of it.
    pub(super) fn new(
        fs: Generated,
        number: u64,
        (process, thread): (Arc<Process>, Thread),
        file: &'static ProcessFile,
    ) -> Self {
        Self { fs, number, thread, process, file }
    }
}

/// An open file in the folder of a process.
struct OpenProcess {
    node: Arc<ProcessNode>,
    /// The address space when the file was opened, while any process has it. A program that the process executes later is
    /// not the one that the caller was allowed to look at.
    space: Weak<Space>,
    /// Where the program is in it.
    program: ProgramLayout,
}

impl OpenProcess {
    fn new(node: Arc<ProcessNode>) -> Self {
        let process = &node.process;
        let space = process.space_handle().map_or_else(Weak::new, |space| Arc::downgrade(&space));
        let program = process.account.program.lock().clone();
        Self { node, space, program }
    }
}

impl Contents for OpenProcess {
    fn make(&self, enough: usize) -> Option<Result<Made, Errno>> {
        let ProcessNode { process, thread, file, .. } = &*self.node;
        let program = &self.program;
        let made = match &file.content {
            ProcessContent::Text(write) => Text::of(enough, |out| write(process, out)),
            ProcessContent::Thread(write) => Text::of(enough, |out| write(process, *thread, out)),
            ProcessContent::Space(write) => {
                let space = self.space.upgrade();
                Text::of(enough, |out| space.as_ref().map_or(Ok(()), |space| write(program, space, out)))
            }
            ProcessContent::Whole(make) => make(process).map(|bytes| (bytes, true)),
            ProcessContent::Memory(make) => {
                let bytes = self.space.upgrade().map_or(Ok(Vec::new()), |space| make(program, &space));
                bytes.map(|bytes| (bytes, true))
            }
            ProcessContent::At(_) | ProcessContent::Both(..) | ProcessContent::Nothing => return None,
        };
        Some(made.map(|(bytes, is_whole)| Made { bytes, is_whole }))
    }

    fn at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        match &self.node.file.content {
            ProcessContent::At(read) | ProcessContent::Both(read, _) => {
                self.space.upgrade().map_or(Ok(0), |space| read(&space, offset, bytes))
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn has_offsets(&self) -> bool {
        matches!(self.node.file.content, ProcessContent::Both(..))
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let ProcessNode { process, thread, file, .. } = &*self.node;
        if let ProcessContent::Both(_, store) = &file.content {
            return self.space.upgrade().map_or(Ok(0), |space| store(&space, offset, bytes));
        }
        file.control.ok_or(Errno::EINVAL)?(process, *thread, text_of(bytes)?)?;
        Ok(bytes.len())
    }
}

/// A text, which is written whole.
fn text_of(bytes: &[u8]) -> Result<&str, Errno> {
    let text = str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    if text.len() > MOST_WRITTEN { Err(Errno::EINVAL) } else { Ok(text) }
}

impl Node for ProcessNode {
    fn attributes(&self) -> Attributes {
        attributes_of(&self.process, self.fs, self.number, Kind::Regular, self.file.mode)
    }

    fn open(self: Arc<Self>, _opening: &Opening<'_>) -> Result<Box<dyn File>, Errno> {
        // Before the caller's rights are compared with the process's, which a program changes before it gets its memory.
        let contents = OpenProcess::new(self.clone());
        match &self.file.content {
            ProcessContent::Space(_)
            | ProcessContent::Memory(_)
            | ProcessContent::At(_)
            | ProcessContent::Both(..) => check_trace(&self.process)?,
            ProcessContent::Text(_)
            | ProcessContent::Thread(_)
            | ProcessContent::Whole(_)
            | ProcessContent::Nothing => {}
        }
        Ok(Box::new(GeneratedFile { contents, made: SleepLock::new(None) }))
    }

    fn truncate(&self, _bytes: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn change(&self, _change: &Change) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }

    fn fs_info(&self) -> FsInfo {
        self.fs.info()
    }
}

/// A program often reads the first page of a long text, such as `smaps`, and no more. So the first read makes about as
/// much as it asks for, and a later one makes the rest.
struct GeneratedFile<C> {
    contents: C,
    made: SleepLock<Option<Made>>,
}

impl<C: Contents + 'static> GeneratedFile<C> {
    /// Reads contents that are read at an offset.
    fn read_at(&self, position: &mut u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let mut chunk = Chunk::for_bytes(to.left())?;
        let mut done = 0;
        while to.left() > 0 {
            let part = chunk.len().min(to.left());
            let copied =
                self.contents.at(*position, &mut chunk[..part]).and_then(|got| to.put(&chunk[..got]));
            match copied {
                Ok(0) => break,
                Ok(count) => {
                    *position += count as u64;
                    done += count;
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}

impl<C: Contents + 'static> GeneratedFile<C> {
    /// Writes contents that are stored at an offset, up to a part that cannot be.
    fn write_at(&self, position: &mut u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let mut chunk = Chunk::for_bytes(from.left())?;
        let mut done = 0;
        while from.left() > 0 {
            let part = chunk.len().min(from.left());
            let taken = from.take(&mut chunk[..part]);
            match taken.and_then(|taken| self.contents.store(*position, &chunk[..taken])) {
                Ok(stored) => {
                    *position += stored as u64;
                    done += stored;
                    if stored < part {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}

impl<C: Contents + 'static> File for GeneratedFile<C> {
    fn read(&self, position: &mut u64, to: &mut dyn Sink, _io: Io) -> Result<usize, Errno> {
        let mut made = self.made.lock();
        let mut at = usize::try_from(*position).unwrap_or(usize::MAX);
        if at == 0 || made.as_ref().is_none_or(|made| !made.is_whole && at >= made.bytes.len()) {
            let enough = if at == 0 { to.left().max(PAGE) } else { usize::MAX };
            match self.contents.make(enough) {
                Some(contents) => {
                    let continues = made.is_some();
                    let contents = made.insert(contents?);
                    at = if continues { contents.line_from(at) } else { at };
                }
                None => return self.read_at(position, to),
            }
        }
        let whole = made.as_ref().map_or(&[][..], |made| &made.bytes);
        let rest = whole.get(at..).unwrap_or(&[]);
        let count = to.put(&rest[..rest.len().min(to.left())])?;
        *position = at as u64 + count as u64;
        Ok(count)
    }

    fn write(&self, position: &mut u64, from: &mut dyn Source, _io: Io) -> Result<usize, Errno> {
        if self.contents.has_offsets() {
            return self.write_at(position, from);
        }
        // One more, so that a text is found to be too long.
        let length = from.left().min(MOST_WRITTEN + 1);
        let mut chunk = Chunk::for_bytes(length)?;
        if from.take(&mut chunk[..length])? < length {
            return Err(Errno::EFAULT);
        }
        let stored = self.contents.store(*position, &chunk[..length])?;
        *position += stored as u64;
        Ok(stored)
    }
}
