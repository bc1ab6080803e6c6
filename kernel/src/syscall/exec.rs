//! Executing programs.

use alloc::format;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::Answer;
use crate::errno::Errno;
use crate::files::node::Kind;
use crate::files::walk::{Follow, PATH_BYTES, Walk};
use crate::memory::list;
use crate::memory::user::UserMemory;
use crate::program::image::ProgramFile;
use crate::program::stack::STRINGS_BYTES;
use crate::task::exec::{Strings, execute};
use crate::task::{Task, sched};

/// The longest string, as in Linux (`MAX_ARG_STRLEN`).
const STRING_BYTES: usize = 128 << 10;

/// `execve`
pub(super) fn execve(task: &Task, [path, arguments, environment, ..]: [u64; 6]) -> Answer {
    let path = read_path(task, path)?;
    let strings = read_both(task, arguments, environment)?;
    execute(&sched::current(), ProgramFile::open(&path)?, strings)?;
    Ok(0)
}

/// `execveat`. A script is named by its descriptor, so that its interpreter can open it.
pub(super) fn execveat(task: &Task, [directory, path, arguments, environment, flags, _]: [u64; 6]) -> Answer {
    let known = abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH;
    if flags as u32 & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let path = read_path(task, path)?;
    let strings = read_both(task, arguments, environment)?;
    let here = path.first() == Some(&b'/') || directory as i32 == abi::AT_FDCWD;
    let places = task.process.fs.lock().as_ref().ok_or(Errno::ENOENT)?.places();
    let (base, name) = if here {
        (places.current, path.clone())
    } else {
        let descriptor = format!("/dev/fd/{}", directory as u32).into_bytes();
        let file = task.process.files.lock().get(directory)?;
        let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
        (file.place().clone(), [&descriptor, slash, &path].concat())
    };
    let follow = flags as u32 & abi::AT_SYMLINK_NOFOLLOW == 0;
    let place = if path.is_empty() && flags as u32 & abi::AT_EMPTY_PATH != 0 {
        base
    } else {
        Walk { root: places.root, base, follow: Follow::when(follow), resolve: 0 }.find(&path)?.existing()?
    };
    if place.node().kind() == Kind::Symlink {
        return Err(Errno::ELOOP);
    }
    execute(&sched::current(), ProgramFile::at(place, &name)?, strings)?;
    Ok(0)
}

fn read_path(task: &Task, path: u64) -> Result<Vec<u8>, Errno> {
    UserMemory::of(task.space()).read_string(VirtAddr(path), PATH_BYTES, Errno::ENAMETOOLONG)
}

fn read_both(task: &Task, arguments: u64, environment: u64) -> Result<Strings, Errno> {
    let memory = UserMemory::of(task.space());
    let mut left = STRINGS_BYTES;
    let arguments = read_strings(memory, arguments, &mut left)?;
    let environment = read_strings(memory, environment, &mut left)?;
    Ok(Strings { arguments, environment })
}

/// Reads a list of strings that ends with a null pointer.
fn read_strings(memory: UserMemory<'_>, list: u64, left: &mut usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut strings = Vec::new();
    if list == 0 {
        return Ok(strings);
    }
    loop {
        let at = list.checked_add(strings.len() as u64 * 8).ok_or(Errno::EFAULT)?;
        let pointer = memory.read_u64(VirtAddr(at))?;
        if pointer == 0 {
            return Ok(strings);
        }
        let string = memory.read_string(VirtAddr(pointer), STRING_BYTES, Errno::E2BIG)?;
        *left = left.checked_sub(string.len() + 1 + size_of::<u64>()).ok_or(Errno::E2BIG)?;
        list::append(&mut strings, [string])?;
    }
}
