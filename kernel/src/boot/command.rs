//! The command that the machine is started for.
//!
//! It stands in the initial RAM disk, in files of strings that each end with a zero byte: `.quire/arguments` and
//! `.quire/environment`, and in `.quire/program` the path to execute. Without them it is the kernel's command line,
//! after a word `--` if there is one. `.quire/directory` and `.quire/terminal` say where the command starts, and how
//! large its terminal is.

use alloc::vec::Vec;

use spin::Once;

use super::start_info::BootInfo;
use crate::files::initramfs;
use crate::task::exec::Strings;

/// What runs if nothing else is asked for.
const DEFAULT: &str = "/bin/busybox echo hello";

static LINE: Once<&'static [u8]> = Once::new();

/// Remembers the kernel's command line.
pub fn remember(info: BootInfo) {
    LINE.call_once(|| info.command_line());
}

/// The kernel's command line.
pub fn line() -> &'static [u8] {
    LINE.get().copied().unwrap_or_default()
}

/// What of a command line is for the kernel, and what is for the program: the words behind the first word `--`.
fn parts(line: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut at = 0;
    for word in line.split(|&byte| byte == b' ') {
        let end = at + word.len();
        if word == b"--" {
            return (&line[..at], Some(line.get(end + 1..).unwrap_or_default()));
        }
        at = end + 1;
    }
    (line, None)
}

/// What of a command line is for the kernel. Words of the program need not be text; options are.
pub fn options(line: &[u8]) -> &str {
    parts(line).0.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// The value of the option `NAME=VALUE` of the kernel.
pub fn option(name: &str) -> Option<&'static str> {
    option_of(line(), name)
}

/// The value of the option in a command line.
pub fn option_of<'l>(line: &'l [u8], name: &str) -> Option<&'l str> {
    options(line).split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// The program's path and what it gets.
pub fn command() -> (Vec<u8>, Strings) {
    let strings = Strings {
        arguments: strings_of(".quire/arguments").unwrap_or_else(words_of_line),
        environment: strings_of(".quire/environment").unwrap_or_default(),
    };
    let program = strings_of(".quire/program").and_then(|paths| paths.into_iter().next());
    let program = program.unwrap_or_else(|| strings.arguments.first().cloned().unwrap_or_default());
    (program, strings)
}

/// The directory that the command starts in, if it is another than the root.
pub fn directory() -> Option<&'static [u8]> {
    initramfs::find(".quire/directory").map(|file| file.bytes).filter(|path| !path.is_empty())
}

/// The rows and columns of the user's terminal, if there is one whose size is known.
pub fn terminal_size() -> Option<[u16; 2]> {
    let text = str::from_utf8(initramfs::find(".quire/terminal")?.bytes).ok()?;
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok().filter(|&size| size > 0));
    Some([numbers.next()??, numbers.next()??])
}

fn words_of_line() -> Vec<Vec<u8>> {
    let (all, words) = parts(line());
    let words = words.unwrap_or(all);
    let words = if words.trim_ascii().is_empty() { DEFAULT.as_bytes() } else { words };
    words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
}

fn strings_of(path: &str) -> Option<Vec<Vec<u8>>> {
    let bytes = initramfs::find(path)?.bytes;
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    Some(if bytes.is_empty() {
        Vec::new()
    } else {
        bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
    })
}
