//! The file system of control groups (`cgroup2`): a folder for each group.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::{self, Write};

use quire_interop::proc::GroupFile;

use super::file::MachineNode;
use super::{CGROUP_MAGIC, FolderNode, Generated};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Attributes, Directory, Entry, Kind, New, NewKind, Node};
use crate::files::open::OpenFile;
use crate::memory::list;
use crate::memory::manager::manager;
use crate::observe::{Control, MachineFile, write_bytes};
use crate::task::credentials::{WRITE, check_file};
use crate::task::group::{self, ControlGroup};
use crate::task::process::Process;
use crate::task::{sched, table};

/// The root of a mount of it.
pub fn group_root(number: u64) -> Arc<dyn Node> {
    Arc::new(GroupFolder { fs: Generated { fs: number, magic: CGROUP_MAGIC }, group: group::root().clone() })
}

/// The group whose folder is open there, if the running process may make others part of it.
///
/// # Errors
/// [`Errno::EBADF`] where that is no group; [`Errno::EACCES`].
pub fn group_of(file: &OpenFile) -> Result<Arc<ControlGroup>, Errno> {
    let node: &dyn Any = &**file.place().node();
    let folder: &GroupFolder = node.downcast_ref().ok_or(Errno::EBADF)?;
    // The right to write to its `cgroup.procs`.
    check_file(WRITE, || Attributes::of_kernel(folder.fs.fs, folder.group.number, Kind::Regular, 0o644))?;
    Ok(folder.group.clone())
}

/// The folder of a group.
struct GroupFolder {
    fs: Generated,
    group: Arc<ControlGroup>,
}

/// Numbers of a group's files, from its own on.
const MOST_FILES: u64 = 32;

impl GroupFolder {
    fn of(&self, group: Arc<ControlGroup>) -> Arc<dyn Node> {
        Arc::new(Self { fs: self.fs, group })
    }

    fn files(&self) -> Vec<MachineFile> {
        let group = || self.group.clone();
        let (of_list, of_given, of_processes) = (group(), group(), group());
        let (gives, joins) = (group(), group());
        let mut files = alloc::vec![
            file("cgroup.controllers", move |out| show(out, of_list.has_controller()), None),
            file(
                "cgroup.procs",
                move |out| of_processes.processes().try_for_each(|process| writeln!(out, "{}", process.id)),
                Some(Box::new(move |text| joins.join(&*process_named(text)?))),
            ),
            file(
                "cgroup.subtree_control",
                move |out| show(out, of_given.gives()),
                Some(Box::new(move |text| give(&gives, text))),
            ),
        ];
        if let Some(counter) = self.group.counter() {
            for each in GroupFile::all() {
                let control: Control = Box::new(move |text| {
                    each.write(manager(), counter, text).map_err(|error| Errno::of(error.errno()))
                });
                let control = each.is_writable().then_some(control);
                files.push(file(&each.to_string(), move |out| each.read(out, manager(), counter), control));
            }
        }
        files
    }
}

fn file(
    name: &str,
    write: impl Fn(&mut dyn Write) -> fmt::Result + Send + Sync + 'static,
    control: Option<Control>,
) -> MachineFile {
    MachineFile {
        path: name.into(),
        mode: if control.is_some() { 0o644 } else { 0o444 },
        text: Some(Box::new(move |out| write(out).map_err(|_| Errno::ENOMEM))),
        control,
        bytes: None,
    }
}

fn show(out: &mut dyn Write, has_controller: bool) -> fmt::Result {
    if has_controller { out.write_str("hugetlb\n") } else { Ok(()) }
}

/// `+hugetlb` or `-hugetlb`.
fn give(group: &ControlGroup, text: &str) -> Result<(), Errno> {
    for word in text.split_whitespace() {
        match word {
            "+hugetlb" => group.give(true)?,
            "-hugetlb" => group.give(false)?,
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(())
}

/// The process with this number; 0 is the one that writes.
fn process_named(text: &str) -> Result<Arc<Process>, Errno> {
    match text.trim().parse().map_err(|_| Errno::EINVAL)? {
        0 => Ok(sched::current_ref().process.clone()),
        id => table::process(id).filter(|process| !process.has_ended()).ok_or(Errno::ESRCH),
    }
}

impl FolderNode for GroupFolder {
    fn fs(&self) -> Generated {
        self.fs
    }

    fn stat(&self) -> Attributes {
        Attributes::of_kernel(self.fs.fs, self.group.number * MOST_FILES, Kind::Directory, 0o755)
    }
}

impl Directory for GroupFolder {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        let child = self.group.child(name);
        let node = match child {
            Some(child) => self.of(child),
            None => {
                let files = self.files().into_iter();
                let found = files.zip(1..).find(|(file, _)| file.path.as_bytes() == name);
                let (file, number) = found.ok_or(Errno::ENOENT)?;
                Arc::new(MachineNode::numbered(self.fs, self.group.number * MOST_FILES + number, file))
            }
        };
        Ok(Dentry::new(here, name.into(), node))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let entry = |name: Arc<[u8]>, number, kind| Entry { name, number, kind };
        let children = self.group.children()?.into_iter();
        let children =
            children.map(|child| entry(child.name.clone(), child.number * MOST_FILES, Kind::Directory));
        let files = self.files().into_iter().zip(1..).map(|(file, number)| {
            entry(file.path.as_bytes().into(), self.group.number * MOST_FILES + number, Kind::Regular)
        });
        list::collect(children.chain(files))
    }

    fn create(&self, here: &Arc<Dentry>, name: &[u8], new: New) -> Result<Arc<Dentry>, Errno> {
        if !matches!(new.kind, NewKind::Other(Kind::Directory)) {
            return Err(Errno::EPERM);
        }
        if name.contains(&b'\n') {
            return Err(Errno::EINVAL);
        }
        Ok(Dentry::new(here, name.into(), self.of(self.group.make(name)?)))
    }

    fn remove(&self, name: &[u8], entry: &Arc<Dentry>, directory: bool) -> Result<(), Errno> {
        if !directory {
            return Err(Errno::EPERM);
        }
        if !entry.node().is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.group.remove(name)
    }
}

/// Writes `/proc/PID/cgroup`.
///
/// # Errors
/// Those of the writer.
pub fn write_group(process: &Process, out: &mut dyn Write) -> fmt::Result {
    let group = process.control_group.lock().clone();
    let names = group.names().map_err(|_| fmt::Error)?;
    out.write_str(if names.is_empty() { "0::/" } else { "0::" })?;
    for name in names.iter().rev() {
        out.write_char('/')?;
        write_bytes(out, name)?;
    }
    out.write_char('\n')
}
