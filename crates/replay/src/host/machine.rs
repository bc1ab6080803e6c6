//! Describes the machine: enough to tell whether two results may be compared.

use std::sync::OnceLock;

use procfs::Current;
use serde_json::{Map, Value, json};

use super::cycles;
use super::thp;
use super::threads;

/// How a binary was built. Results name it.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The commit, `-dirty` added when the sources differed from it.
    pub commit: &'static str,
    /// The compiler and its version.
    pub rustc: &'static str,
    /// The compiler's level of optimisation, as Cargo names it.
    pub opt_level: &'static str,
}

static BUILD: OnceLock<Build> = OnceLock::new();

/// Says how this binary was built, which only its own build script knows. The first call holds.
pub fn set_build(build: Build) {
    BUILD.get_or_init(|| build);
}

fn build() -> Build {
    const UNKNOWN: Build = Build { commit: "unknown", rustc: "unknown", opt_level: "unknown" };
    *BUILD.get().unwrap_or(&UNKNOWN)
}

/// The commit that this binary was built from, `-dirty` added when the sources differed from it.
pub fn commit() -> &'static str {
    build().commit
}

/// Whether this binary was built without release optimisation, so that its figures say little.
pub fn is_quick_build() -> bool {
    build().opt_level != "3"
}

/// The processor's name for itself; empty if it says none.
pub fn processor() -> String {
    let found = procfs::CpuInfo::current().ok();
    found.and_then(|info| info.model_name(0).map(str::to_owned)).unwrap_or_default()
}

/// CPU, memory, kernel, compiler and settings. A value that the system does not provide is `null`.
pub fn describe() -> Value {
    let cpu = procfs::CpuInfo::current().ok();
    let memory = procfs::Meminfo::current().ok().map(|info| info.mem_total);
    let load = procfs::LoadAverage::current().ok().map(|load| load.one);
    let model = cpu.as_ref().and_then(|cpu| cpu.model_name(0).map(str::to_owned));
    let virtual_machine =
        cpu.as_ref().and_then(|cpu| cpu.flags(0).map(|flags| flags.contains(&"hypervisor")));
    json!({
        "cpu": model,
        "features": features(cpu.as_ref()),
        "cpus": threads::allowed_cpus().len(),
        "virtual": virtual_machine,
        "tsc_hertz": cycles::hertz().round(),
        "memory_bytes": memory,
        "kernel": read("/proc/sys/kernel/osrelease"),
        "rustc": build().rustc,
        "opt_level": build().opt_level,
        "load_at_start": load,
        "mitigations": mitigations(),
        "thp": transparent_huge_pages(),
    })
}

/// The features of the processor that decide how memory is cleared and copied.
fn features(cpu: Option<&procfs::CpuInfo>) -> Vec<&'static str> {
    let all = cpu.and_then(|cpu| cpu.flags(0)).unwrap_or_default();
    ["avx2", "avx512f", "clzero", "erms", "fsrm", "movdir64b"]
        .into_iter()
        .filter(|name| all.contains(name))
        .collect()
}

/// What the kernel does about each weakness that the processor has: it costs system calls and faults time.
fn mitigations() -> Map<String, Value> {
    let all = std::fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| {
        let text = read(entry.path().to_str()?).filter(|text| text != "Not affected")?;
        Some((entry.file_name().into_string().ok()?, json!(text)))
    };
    all.filter_map(of).collect()
}

fn transparent_huge_pages() -> Value {
    let mut settings = Map::new();
    for name in ["enabled", "defrag"] {
        settings.insert(name.to_owned(), json!(thp::selected(&thp::root().join(name))));
    }
    let sizes: Map<String, Value> = thp::sizes(&thp::root())
        .into_iter()
        .map(|(kib, path)| (format!("{kib}KiB"), json!(thp::selected(&path))))
        .collect();
    settings.insert("sizes".to_owned(), Value::Object(sizes));
    Value::Object(settings)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}
