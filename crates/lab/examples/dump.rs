//! Prints a trace, one event a line: `cargo run --example dump -- traces/gcc.qtrace`.

use std::io::{BufWriter, Write, stdout};

use lab::output::quoted;
use lab::trace::{EventKind, TraceReader};

fn main() -> anyhow::Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("give the path of a trace"))?;
    let mut reader = TraceReader::open(path)?;
    let mut out = BufWriter::new(stdout().lock());
    writeln!(out, "{:#?}", reader.header())?;
    let mut start_ns = None;
    while let Some(event) = reader.next() {
        let event = event?;
        let since = event.time_ns - *start_ns.get_or_insert(event.time_ns);
        let named = match &event.kind {
            EventKind::Exec { name } => Some(*name),
            EventKind::Map { file, .. } => file.map(|file| file.path),
            EventKind::Syscall(call) => call.file.map(|file| file.path),
            _ => None,
        };
        let name =
            named.and_then(|path| reader.path(path)).map(|name| quoted(name).to_string()).unwrap_or_default();
        writeln!(out, "{since:>13} {:>7} {:>7} {:x?} {name}", event.pid, event.tid, event.kind)?;
    }
    Ok(())
}
