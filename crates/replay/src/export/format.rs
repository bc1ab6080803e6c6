//! How a touch or an event is written.

use std::fmt;
use std::io::{self, Write};

use super::touches::{PAGE, Touch};
use crate::trace::{Accesses, Event, EventKind, ForkKind, Region, TraceReader};

/// What was written.
pub(super) enum Written {
    Events(u64),
    Touches { pid: u32, count: u64 },
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events(count) => write!(f, "{count} events"),
            Self::Touches { pid, count } => write!(f, "{count} touches of pages by process {pid}"),
        }
    }
}

/// A line for the trace of loads and stores of Ramulator 2 (`LoadStoreTrace`): `LD 0x…` or `ST 0x…`.
pub(super) fn ramulator<W: Write>(touch: &Touch, out: &mut W) -> io::Result<()> {
    writeln!(out, "{} {:#x}", if touch.store { "ST" } else { "LD" }, touch.addr)
}

/// An instruction of ChampSim (`input_instr` of its `inc/trace_instruction.h`): 64 bytes, little-endian, that load from
/// the address or store to it. Its instruction pointer is made up: a store and a load have one each.
pub(super) fn champsim<W: Write>(touch: &Touch, out: &mut W) -> io::Result<()> {
    const STORE_AT: u64 = 0x40_0000;
    const LOAD_AT: u64 = 0x40_0004;
    // Where the parts begin: the instruction pointer, two flags and six registers, two addresses stored to, four loaded.
    const STORES: usize = 16;
    const LOADS: usize = 32;
    let mut instruction = [0; 64];
    let (at, place) = if touch.store { (STORE_AT, STORES) } else { (LOAD_AT, LOADS) };
    instruction[..8].copy_from_slice(&at.to_le_bytes());
    instruction[place..place + 8].copy_from_slice(&touch.addr.to_le_bytes());
    out.write_all(&instruction)
}

/// A line for `mimicos_replay` of Virtuoso (its `mimicos/tests/mimicos_replay.cc`): an address space and the number of a page of
/// 4 KiB in it, both decimal. There is one address space, number 0.
pub(super) fn mimicos<W: Write>(touch: &Touch, out: &mut W) -> io::Result<()> {
    writeln!(out, "0 {}", touch.addr / PAGE)
}

/// The first line of the table.
pub(super) const HEADING: [&str; 7] = ["time_ns", "pid", "tid", "event", "start", "len", "detail"];

/// A line of the table.
pub(super) fn csv<R: io::Read>(event: &Event, reader: &TraceReader<R>) -> [String; 7] {
    let path = |id| reader.path(id).unwrap_or_default().to_owned();
    let (name, start, len, detail) = match &event.kind {
        EventKind::Exec { name } => ("exec", 0, 0, path(*name)),
        EventKind::Fork { child_pid, kind, .. } => {
            let shared = if *kind == ForkKind::SharedMemory { " shared" } else { "" };
            ("fork", 0, 0, format!("{child_pid}{shared}"))
        }
        EventKind::ThreadStart { .. } => ("thread-start", 0, 0, String::new()),
        EventKind::ThreadExit => ("thread-exit", 0, 0, String::new()),
        EventKind::ProcessExit { .. } => ("process-exit", 0, 0, String::new()),
        EventKind::Map { start, len, file, .. } => {
            ("map", *start, *len, file.as_ref().map(|file| path(file.path)).unwrap_or_default())
        }
        EventKind::Syscall(call) => {
            let args: Vec<String> = call.args.iter().map(|arg| format!("{arg:#x}")).collect();
            (call.call.name(), 0, 0, format!("{} = {}", args.join(" "), call.result))
        }
        EventKind::Fault { addr, access, duration_ns, major, .. } => {
            let access = format!("{access:?}").to_lowercase();
            let outcome = match duration_ns {
                Some(ns) => format!(" {ns} ns"),
                // An ordinary user's recording knows neither access nor duration, and has resolved faults only.
                None if access == "unknown" => String::new(),
                None => " unresolved".to_owned(),
            };
            ("fault", *addr, 0, format!("{access}{outcome}{}", if *major { " major" } else { "" }))
        }
        EventKind::FaultAround { start, len } => ("fault-around", *start, *len, String::new()),
        EventKind::Populate { start, len, .. } => ("populate", *start, *len, String::new()),
        EventKind::Accesses(Accesses { samples, regions, .. }) => {
            let (start, end) =
                (regions.first().map_or(0, |first| first.start), regions.last().map_or(0, Region::end));
            let of = regions
                .iter()
                .map(|region| format!("{:#x}+{:#x}:{}", region.start, region.len, region.accessed));
            ("accesses", start, end - start, format!("of {samples}: {}", of.collect::<Vec<_>>().join(" ")))
        }
        EventKind::Lost { records } => ("lost", 0, 0, records.to_string()),
    };
    let Event { time_ns, pid, tid, .. } = event;
    [
        time_ns.to_string(),
        pid.to_string(),
        tid.to_string(),
        name.to_owned(),
        format!("{start:#x}"),
        len.to_string(),
        detail,
    ]
}
