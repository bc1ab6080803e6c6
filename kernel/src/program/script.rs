//! Scripts: a file that begins with `#!` names the program that runs it (`execve(2)`, "Interpreter scripts").

use alloc::vec::Vec;

use super::image::ProgramFile;
use crate::errno::Errno;
use crate::memory::list;
use crate::task::exec::Strings;

/// The longest first line, as in Linux (`BINPRM_BUF_SIZE`).
const LINE_BYTES: usize = 256;
/// How many scripts may run each other.
const MOST: usize = 5;

/// Opens the program that a script needs, and adds what scripts on the way add to its arguments. Another file is the
/// program itself.
///
/// # Errors
/// [`Errno::ENOENT`], [`Errno::ENOEXEC`], [`Errno::ELOOP`], [`Errno::ENOMEM`].
pub fn resolve(mut file: ProgramFile, mut strings: Strings) -> Result<(ProgramFile, Strings), Errno> {
    for _ in 0..=MOST {
        let Some((interpreter, argument)) = first_line(&file.head)? else { return Ok((file, strings)) };
        let rest = strings.arguments.into_iter().skip(1);
        let first = [interpreter.to_vec()].into_iter();
        let first = first.chain(argument.map(<[u8]>::to_vec)).chain([file.path.clone()]);
        strings.arguments = list::collect(first.chain(rest))?;
        file = ProgramFile::open(interpreter)?;
    }
    Err(Errno::ELOOP)
}

/// A path and its one argument.
type Interpreter<'h> = (&'h [u8], Option<&'h [u8]>);

/// What the first line asks for.
fn first_line(head: &[u8]) -> Result<Option<Interpreter<'_>>, Errno> {
    let Some(line) = head.strip_prefix(b"#!") else { return Ok(None) };
    let line = &line[..line.len().min(LINE_BYTES)];
    let end = line.iter().position(|&byte| byte == b'\n').unwrap_or(line.len());
    let line = line[..end].trim_ascii();
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let (interpreter, argument) = match line.iter().position(blank) {
        Some(at) => (&line[..at], Some(line[at..].trim_ascii())),
        None => (line, None),
    };
    if interpreter.is_empty() { Err(Errno::ENOEXEC) } else { Ok(Some((interpreter, argument))) }
}

/// The total size of strings on a stack, with their pointers.
pub fn size(strings: &[Vec<u8>]) -> usize {
    strings.iter().map(|string| string.len() + 1 + size_of::<u64>()).sum()
}
