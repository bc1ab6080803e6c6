//! The requests of `bpf(2)` that a recording makes.
//!
//! No crate of system calls has them. Those that load programs expect object files of a compiler.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::libc;

use super::asm::Instruction;

/// Commands of `bpf(2)`.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const PROGRAM_LOAD: i32 = 5;
const TRACEPOINT_OPEN: i32 = 17;

/// Types of maps.
pub(super) const ARRAY: u32 = 2;
pub(super) const ARRAY_OF_MAPS: u32 = 12;
pub(super) const RING: u32 = 27;

/// The flag of a map that processes can map.
pub(super) const MAPPABLE: u32 = 1 << 10;

/// Types of programs.
pub(super) const EVENT_PROGRAM: u32 = 7;
pub(super) const TRACEPOINT_PROGRAM: u32 = 17;
pub(super) const TYPED_PROGRAM: u32 = 26;

/// A typed program is for a tracepoint.
const FOR_TRACEPOINT: u32 = 23;

/// Functions that read the kernel's memory are for programs under the GPL alone, or with a choice of
/// licences.
const LICENCE: &CStr = c"Dual MIT/GPL";

/// Room for what the kernel says of a program that it refuses.
const LOG_BYTES: usize = 64 << 10;

/// How often a program is loaded again after a signal.
const INTERRUPTED_TRIES: usize = 5;

/// The parts of the kernel's `union bpf_attr` that are used, each for one command.
#[repr(C)]
#[derive(Default)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct ElementAttributes {
    map: u32,
    unused: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramAttributes {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attached_as: u32,
    types: u32,
    function_bytes: u32,
    functions: u64,
    function_count: u32,
    line_bytes: u32,
    lines: u64,
    line_count: u32,
    attached_to: u32,
    other: u32,
    relocations: u32,
}

#[repr(C)]
#[derive(Default)]
struct TracepointAttributes {
    name: u64,
    program: u32,
    unused: u32,
}

/// Makes a request; the result is a descriptor or 0.
///
/// # Safety
/// The addresses in `attributes` are those that the command takes, and the memory there lives until it
/// returns.
unsafe fn bpf<T>(command: i32, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: C3: the kernel reads and writes at most the size that it is told, of a structure with the
    // layout of the command; the caller vouches for the addresses in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: C3: the kernel has just given this descriptor to this process; nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// A name as the kernel lists it; the last byte stays 0.
fn name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (byte, letter) in bytes[..15].iter_mut().zip(name.bytes()) {
        *byte = letter;
    }
    bytes
}

/// What a map is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    pub(super) name: &'static str,
    pub(super) kind: u32,
    pub(super) key_bytes: u32,
    pub(super) value_bytes: u32,
    pub(super) entries: u32,
    pub(super) flags: u32,
}

impl Map {
    /// Makes it. One of maps is made for maps like `inner`.
    pub(super) fn make(self, inner: Option<&OwnedFd>) -> io::Result<OwnedFd> {
        let mut attributes = MapAttributes {
            kind: self.kind,
            key_bytes: self.key_bytes,
            value_bytes: self.value_bytes,
            entries: self.entries,
            flags: self.flags,
            inner: inner.map_or(0, |inner| inner.as_raw_fd() as u32),
            node: 0,
            name: name(self.name),
        };
        // SAFETY: C3: the structure has no addresses.
        unsafe { bpf(MAP_CREATE, &mut attributes) }.map(owned)
    }
}

/// Sets an entry of a map of maps.
pub(super) fn set(maps: &OwnedFd, index: u32, map: &OwnedFd) -> io::Result<()> {
    let value = map.as_raw_fd() as u32;
    let mut attributes = ElementAttributes {
        map: maps.as_raw_fd() as u32,
        key: (&raw const index).expose_provenance() as u64,
        value: (&raw const value).expose_provenance() as u64,
        ..ElementAttributes::default()
    };
    // SAFETY: C3: key and value are words of 4 bytes, as such a map has them, and the kernel only reads them.
    unsafe { bpf(MAP_UPDATE, &mut attributes) }.map(drop)
}

/// Loads a program. The error is what the kernel says last of one that it refuses.
pub(super) fn load(
    named: &str,
    kind: u32,
    attached_to: Option<u32>,
    code: &[Instruction],
) -> Result<OwnedFd, io::Error> {
    let attempt = |log: &mut [u8]| {
        let mut attributes = ProgramAttributes {
            kind,
            instructions: code.len() as u32,
            code: code.as_ptr().expose_provenance() as u64,
            licence: LICENCE.as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_bytes: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            name: name(named),
            attached_as: if attached_to.is_some() { FOR_TRACEPOINT } else { 0 },
            attached_to: attached_to.unwrap_or_default(),
            ..ProgramAttributes::default()
        };
        // SAFETY: C3: the code and the licence are as long as the structure says and only read; the kernel
        // writes at most
        // `log_bytes` to the log. All of them outlive the call.
        unsafe { bpf(PROGRAM_LOAD, &mut attributes) }.map(owned)
    };
    // A signal ends the kernel's look at a program; such a one is loaded again.
    let was_interrupted = |loaded: &io::Result<OwnedFd>| {
        loaded.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    let mut loaded = attempt(&mut []);
    for _ in 0..INTERRUPTED_TRIES {
        if !was_interrupted(&loaded) {
            break;
        }
        loaded = attempt(&mut []);
    }
    loaded.map_err(|refused| {
        // Once more, for what the kernel has to say.
        let mut log = vec![0; LOG_BYTES];
        let _ = attempt(&mut log);
        let said = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
        let mut lines: Vec<&str> = said.lines().rev().filter(|line| !line.is_empty()).take(4).collect();
        lines.reverse();
        if lines.is_empty() {
            return refused;
        }
        io::Error::new(refused.kind(), format!("{refused}: {}", lines.join("; ")))
    })
}

/// Attaches a program to a tracepoint, until the result is dropped: by name, or to the one that it was loaded
/// for.
pub(super) fn attach(program: &OwnedFd, tracepoint: Option<&CStr>) -> io::Result<OwnedFd> {
    let mut attributes = TracepointAttributes {
        name: tracepoint.map_or(0, |name| name.as_ptr().expose_provenance() as u64),
        program: program.as_raw_fd() as u32,
        unused: 0,
    };
    // SAFETY: C3: the name is a C string, which the kernel only reads.
    unsafe { bpf(TRACEPOINT_OPEN, &mut attributes) }.map(owned)
}

/// Whether the kernel has a program or map of this number.
#[cfg(test)]
pub(super) fn lives(is_program: bool, number: u32) -> bool {
    const PROGRAM_BY_NUMBER: i32 = 13;
    const MAP_BY_NUMBER: i32 = 14;
    let command = if is_program { PROGRAM_BY_NUMBER } else { MAP_BY_NUMBER };
    let mut attributes = TracepointAttributes { name: u64::from(number), ..TracepointAttributes::default() };
    // SAFETY: C3: the command reads one word, the number, and no addresses.
    unsafe { bpf(command, &mut attributes) }.map(owned).is_ok()
}

/// Returns when each program that ran at the time of the call has ended.
pub(super) fn wait_for_programs() {
    const GLOBAL: i32 = 1;
    // SAFETY: C3: the call takes no memory. Where it fails, records of the last moment may be missing.
    unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
}
