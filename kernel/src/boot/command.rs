//! The command that the machine is started for.
//!
//! It stands in the initial RAM disk, in files of strings that each end with a zero byte: `.quire/arguments` and
//! `.quire/environment`, and in `.quire/program` the path to execute. Without them it is the kernel's command line,
//! after a word `--` if there is one.

use alloc::vec::Vec;

use spin::Once;

use super::start_info::BootInfo;
use crate::files::initramfs;
use crate::task::exec::Strings;

/// What runs if nothing else is asked for.
const DEFAULT: &str = "/bin/busybox echo hello";

static LINE: Once<&'static str> = Once::new();

/// Remembers the kernel's command line.
pub fn remember(info: BootInfo) {
    LINE.call_once(|| info.command_line());
}

/// The kernel's command line.
pub fn line() -> &'static str {
    LINE.get().copied().unwrap_or("")
}

/// What of a command line is for the kernel.
pub fn options(line: &str) -> &str {
    line.split_once(" -- ").map_or(line, |(options, _)| options)
}

/// The value of the option `NAME=VALUE` of the kernel.
pub fn option(name: &str) -> Option<&'static str> {
    option_of(line(), name)
}

/// The value of the option in a command line.
pub fn option_of<'l>(line: &'l str, name: &str) -> Option<&'l str> {
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

fn words_of_line() -> Vec<Vec<u8>> {
    let line = line().split_once("-- ").map_or(line(), |(_, command)| command);
    let line = if line.trim().is_empty() { DEFAULT } else { line };
    line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect()
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
