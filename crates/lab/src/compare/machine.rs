//! This machine in a line.

use bytesize::ByteSize;
use serde_json::Value;

use crate::bench::table::version;
use crate::host::machine;

/// Processor, memory, kernel, what its folio sizes are set to, and whether this user may change them.
pub(super) fn line() -> String {
    let machine = machine::describe();
    let word = |name: &str| machine[name].as_str().unwrap_or("unknown").to_owned();
    let memory = machine["memory_bytes"].as_u64().map_or_else(String::new, |bytes| {
        format!(", {} of memory", ByteSize::b(bytes).display().iec_short())
    });
    let cpus = machine["cpus"].as_u64().unwrap_or(1);
    let load = machine["load_at_start"].as_f64().unwrap_or(0.0);
    format!(
        "machine: {}, {cpus} CPU{}{memory}, Linux {}, transparent huge pages {}{}{}",
        word("cpu"),
        if cpus == 1 { "" } else { "s" },
        word("kernel"),
        machine["thp"]["enabled"].as_str().unwrap_or("not there"),
        if nix::unistd::geteuid().is_root() {
            ""
        } else {
            "; not root, so some of the kernel's figures are missing"
        },
        if load > 1.0 { format!("; a load of {load:.1}: wait for other work to end") } else { String::new() },
    )
}

/// The release of a machine's kernel, to head its column.
pub(crate) fn kernel_of(machine: &Value) -> String {
    format!("Linux {}", version(machine["kernel"].as_str().unwrap_or_default()))
}
