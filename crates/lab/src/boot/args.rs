//! The command line of `quire boot`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::value_parser;

use super::error::BootError;
use super::image::{GUEST_PATH, Given};
use super::machine::{MOST_CPUS, Machine, Model, parse_kernel_option};
use super::start::{Options, boot};
use crate::output::parse_bytes;

const EXAMPLES: &str = "\
Examples:
  quire boot -- busybox cat /proc/meminfo
  quire boot --cpus 4 --memory 2G --timeout 60 -- python3 -c 'print(6 * 7)'
  quire boot --file work.py:/ -- python3 /work.py
  quire boot --kernel-option hugepages=16 -- busybox grep Huge /proc/meminfo";

/// Run a program of this machine on the example kernel, whose memory manager is Quire, in QEMU.
///
/// The program, its interpreter and its libraries are packed into the guest's initial RAM disk and keep their
/// paths. In the source tree the kernel is built first; elsewhere `--kernel` or QUIRE_KERNEL names it.
///
/// The program's terminal is this terminal; ^C goes to the guest. Ctrl-A X ends QEMU, and Ctrl-A Ctrl-A is
/// one Ctrl-A. Where standard input is no terminal, the guest reads its bytes as if they were typed, and ^D
/// at its end.
///
/// The exit code is the program's, or 128 + N after signal N. It is 127 when the program was not found, 126
/// when it could not be executed, 124 when the time ran out, 123 when the kernel failed, and 125 when it could not be
/// run. A kernel that fails shows its log: the message, registers, the functions that were running, and the
/// allocator's state.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// CPUs of the machine.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=i64::from(MOST_CPUS)))]
    cpus: u32,
    /// Memory of the machine, for example 512M.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    memory: u64,
    /// Nodes, with equal parts of the memory and of the CPUs.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(MOST_CPUS)))]
    numa: Option<u32>,
    /// Machine of QEMU.
    #[arg(long, value_enum, default_value_t)]
    machine: Model,
    /// Make runs repeatable: time is the count of instructions, and there are no random numbers. One CPU.
    #[arg(long, conflicts_with = "kvm")]
    icount: bool,
    /// Run on this machine's processor instead of emulating one.
    #[arg(long)]
    kvm: bool,
    /// Directory whose contents are the guest's root directory. Programs and libraries are looked for here
    /// first. The guest has files of its own in /dev, /proc and /sys instead of those in DIR.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// File or directory for the guest, at DEST or at the path that it has here. With a / at its end, DEST is
    /// the directory that SRC comes into: `dir:/` is /dir, and `dir:/.` merges what dir contains into the
    /// root. Programs and libraries bring what they need. Can be repeated.
    #[arg(long, value_name = "SRC[:DEST]", value_parser = OsStringValueParser::new().try_map(parse_file))]
    file: Vec<Given>,
    /// Variable of the program's environment; without a value, that of the caller. Can be repeated. The
    /// environment has PATH, HOME, LANG=C.UTF-8, and the caller's TERM and LD_LIBRARY_PATH.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Working directory of the program.
    #[arg(long, value_name = "DIR", default_value = "/")]
    directory: PathBuf,
    /// File with a disk's raw contents, which the guest reads and writes. Can be repeated.
    #[arg(long, value_name = "FILE")]
    disk: Vec<PathBuf>,
    /// End the run after this time, with exit code 124.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,
    /// Kernel to run, an ELF file.
    #[arg(long, value_name = "FILE", conflicts_with = "checks")]
    kernel: Option<PathBuf>,
    /// Build the kernel with the library's debug checks.
    #[arg(long)]
    checks: bool,
    /// While the program runs, each N-th request for memory on each CPU fails as if memory were out.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    fail_nth: Option<u64>,
    /// Option for the kernel's command line. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_kernel_option)]
    kernel_option: Vec<String>,
    /// Argument for QEMU. Can be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    qemu_arg: Vec<OsString>,
    /// Keep the archive of the guest's files.
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Show the kernel's log on standard error.
    #[arg(short, long)]
    verbose: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `quire boot`.
///
/// # Errors
/// The program cannot be run; see [`BootError`].
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.directory.is_relative() {
        return Err(BootError::Options("the working directory is an absolute path".to_owned()).into());
    }
    let code = boot(&Options {
        machine: Machine {
            model: args.machine,
            cpus: args.cpus,
            memory: args.memory,
            nodes: args.numa,
            icount: args.icount,
            kvm: args.kvm,
            disks: args.disk.clone(),
            kernel_options: kernel_options(args),
            more: args.qemu_arg.clone(),
        },
        command: args.command.clone(),
        environment: environment(&args.env, |name| env::var_os(name)),
        directory: args.directory.clone(),
        root: args.root.clone(),
        files: args.file.clone(),
        kernel: args.kernel.clone(),
        checks: args.checks,
        keep: args.keep.clone(),
        verbose: args.verbose,
        timeout: args.timeout,
    })?;
    Ok(ExitCode::from(code))
}

/// The options of the kernel's command line. The kernel reads the first one of each name.
fn kernel_options(args: &Args) -> Vec<String> {
    let fail_nth = args.fail_nth.map(|nth| format!("fail-nth={nth}"));
    fail_nth.into_iter().chain(args.kernel_option.iter().cloned()).collect()
}

/// A file that the user gives: SRC, or SRC:DEST. DEST ends with `/` if it is the directory that SRC comes
/// into.
fn parse_file(text: OsString) -> Result<Given, String> {
    let bytes = text.as_bytes();
    let (source, path) = match bytes.iter().rposition(|&byte| byte == b':') {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    };
    let source = Path::new(OsStr::from_bytes(source));
    let path = match path {
        None => std::path::absolute(source).map_err(|error| error.to_string())?,
        Some(path) if path.ends_with(b"/") => {
            let name = source.file_name().ok_or("the source has no name; name the destination")?;
            Path::new(OsStr::from_bytes(path)).join(name)
        }
        Some(path) => PathBuf::from(OsStr::from_bytes(path)),
    };
    match path.is_absolute() && !source.as_os_str().is_empty() {
        true => Ok(Given { source: source.to_owned(), path }),
        false => Err("give it as SRC, or as SRC:DEST with an absolute DEST".to_owned()),
    }
}

/// A time to wait: seconds, with a fraction if wanted.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a number of seconds".to_owned())
}

/// The program's environment; later values replace earlier ones.
fn environment(given: &[OsString], of_caller: impl Fn(&OsStr) -> Option<OsString>) -> Vec<OsString> {
    let words = [("PATH", GUEST_PATH), ("HOME", "/root"), ("LANG", "C.UTF-8")];
    let own = words.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let passed = ["TERM", "LD_LIBRARY_PATH"].map(OsString::from);
    let passed = passed.into_iter().filter_map(|name| Some((name.clone(), of_caller(&name)?)));
    let given = given.iter().filter_map(|text| {
        let bytes = text.as_bytes();
        match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => {
                Some((OsString::from_vec(bytes[..at].to_vec()), OsString::from_vec(bytes[at + 1..].to_vec())))
            }
            None => Some((text.clone(), of_caller(text)?)),
        }
    });
    let mut all: Vec<(OsString, OsString)> = Vec::new();
    for (name, value) in own.into_iter().chain(passed).chain(given) {
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => all.push((name, value)),
        }
    }
    let join = |(mut text, value): (OsString, OsString)| {
        text.push("=");
        text.push(value);
        text
    };
    all.into_iter().map(join).collect()
}

#[cfg(test)]
mod tests;
