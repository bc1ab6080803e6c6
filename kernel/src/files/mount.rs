//! The tree of files, as it is when the first program starts, and its end.

use alloc::string::String;
use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use spin::Once;

use super::archive;
use super::dentry::Dentry;
use super::generated::Tree;
use super::mounted;
use super::mounts;
use super::node::{Kind, New, NewKind};
use super::open::{OpenFile, Opening};
use super::special;
use super::stored;
use super::table::FileTable;
use super::tmpfs::TmpFs;
use super::unpack;
use crate::device::disk;
use crate::errno::Errno;
use crate::sync::Mutex;

/// The numbers of the file systems (`st_dev`); that of nodes without a place is 2.
const ROOT_FS: u64 = 1;
const PROC_FS: u64 = 3;
const SYS_FS: u64 = 4;
const DEV_FS: u64 = 5;
const SHM_FS: u64 = 6;
const UNNAMED_FS: u64 = 7;
/// The first number for what programs mount.
pub const FIRST_FREE_FS: u64 = 8;

/// Directories that programs expect, with their modes.
const DIRECTORIES: [(&str, u32); 6] =
    [("proc", 0o555), ("sys", 0o555), ("dev", 0o755), ("tmp", 0o1777), ("run", 0o755), ("root", 0o700)];

/// Links that programs expect in `/dev`.
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

static ROOT: Mutex<Option<Arc<Dentry>>> = Mutex::new(None);
static UNNAMED: Once<Arc<TmpFs>> = Once::new();

/// Builds the tree: the archive's files, and the file systems that are mounted over them.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn start() -> Result<(), Errno> {
    let root = Dentry::root(TmpFs::with_root(ROOT_FS, 0o755));
    unpack::unpack(&root)?;
    for (name, mode) in DIRECTORIES {
        directory(&root, name, mode)?;
    }
    mounts::add_root(&root)?;
    fill_devices(&mounts::put("tmpfs", &at(&root, "dev")?, TmpFs::with_root(DEV_FS, 0o755))?)?;
    mounts::put("proc", &at(&root, "proc")?, Tree::proc(PROC_FS))?;
    mounts::put("sysfs", &at(&root, "sys")?, Tree::sys(SYS_FS))?;
    *ROOT.lock() = Some(root);
    Ok(())
}

/// The root.
///
/// # Panics
/// Before [`start`] and after [`end`].
pub fn root() -> Arc<Dentry> {
    ROOT.lock().clone().expect("no program runs without files")
}

/// Opens the console as standard input, output and error.
///
/// # Errors
/// [`Errno::ENOENT`] without a console, [`Errno::ENOMEM`].
pub fn open_standard(files: &FileTable) -> Result<(), Errno> {
    let dev = at(&root(), "dev")?.covered();
    let place = at(&dev, "console")?;
    let flags = abi::O_RDWR | abi::O_LARGEFILE;
    let file = place.node().clone().open(&Opening { place: &place, flags })?;
    let console = OpenFile::new(file, place, flags);
    (0..3).try_for_each(|descriptor| files.set(descriptor, console.clone(), false).map(drop))
}

/// The file system of files that never have a name (`memfd_create(2)`).
pub fn unnamed() -> Arc<TmpFs> {
    UNNAMED.call_once(|| TmpFs::with_root(UNNAMED_FS, 0o700).fs().clone()).clone()
}

/// Writes what is dirty to the disks, and frees all files. No program runs.
pub fn end() {
    mounts::end();
    mounted::end();
    let root = ROOT.lock().take();
    drop(root);
    archive::forget_changes();
}

#[inline(never)]
fn at(directory: &Arc<Dentry>, name: &str) -> Result<Arc<Dentry>, Errno> {
    directory.node().directory()?.find(directory, name.as_bytes())
}

fn directory(parent: &Arc<Dentry>, name: &str, mode: u32) -> Result<(), Errno> {
    make(parent, name, NewKind::Other(Kind::Directory), mode)
}

/// Makes an entry unless there is one.
#[inline(never)]
fn make(parent: &Arc<Dentry>, name: &str, kind: NewKind, mode: u32) -> Result<(), Errno> {
    match parent.node().directory()?.create(parent, name.as_bytes(), New::own(kind, mode)) {
        Ok(_) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn fill_devices(dev: &Arc<Dentry>) -> Result<(), Errno> {
    for (name, number, mode) in special::NAMES {
        make(dev, name, NewKind::Other(Kind::CharDevice(number)), mode)?;
    }
    for index in 0..disk::all().len() {
        let kind = NewKind::Other(Kind::BlockDevice(stored::device_number(index)));
        make(dev, &String::from_utf8_lossy(&mounted::disk_name(index)), kind, 0o660)?;
    }
    for (name, target) in LINKS {
        make(dev, name, NewKind::Symlink(target.as_bytes().into()), 0o777)?;
    }
    directory(dev, "shm", 0o1777)?;
    mounts::put("tmpfs", &at(dev, "shm")?, TmpFs::with_root(SHM_FS, 0o1777))?;
    Ok(())
}
