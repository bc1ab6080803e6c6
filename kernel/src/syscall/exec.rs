//! Executing programs.

use alloc::vec::Vec;

use quire::addr::VirtAddr;

use super::Answer;
use super::files::PATH_BYTES;
use crate::errno::Errno;
use crate::memory::user::UserMemory;
use crate::program::stack::STRINGS_BYTES;
use crate::task::exec::{Strings, execute};
use crate::task::{Task, sched};

/// The longest string, as in Linux (`MAX_ARG_STRLEN`).
const STRING_BYTES: usize = 128 << 10;

/// `execve`
pub(super) fn execve(task: &Task, [path, arguments, environment, ..]: [u64; 6]) -> Answer {
    execute_at(task, path, arguments, environment)
}

/// `execveat`, as far as paths are absolute.
pub(super) fn execveat(task: &Task, [_, path, arguments, environment, ..]: [u64; 6]) -> Answer {
    execute_at(task, path, arguments, environment)
}

fn execute_at(task: &Task, path: u64, arguments: u64, environment: u64) -> Answer {
    let (path, strings) = {
        let memory = UserMemory::of(task.space());
        let path = memory.read_string(VirtAddr(path), PATH_BYTES, Errno::ENAMETOOLONG)?;
        let mut left = STRINGS_BYTES;
        let arguments = read_strings(memory, arguments, &mut left)?;
        let environment = read_strings(memory, environment, &mut left)?;
        (path, Strings { arguments, environment })
    };
    execute(&sched::current(), &path, strings)?;
    Ok(0)
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
        strings.push(string);
    }
}
