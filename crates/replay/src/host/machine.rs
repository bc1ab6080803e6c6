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
    let number = |name| cpu.as_ref()?.get_field(0, name)?.parse::<u64>().ok();
    json!({
        "cpu": model,
        "family": number("cpu family"),
        "model": number("model"),
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
        "init_on_alloc": clears_what_it_allocates(),
        "memory_cgroup": is_in_memory_cgroup(),
        "settings": kernel_settings(),
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

/// Whether the kernel clears every page that it allocates, also where nothing asks for that (`init_on_alloc`).
fn clears_what_it_allocates() -> Option<bool> {
    let asked =
        procfs::cmdline().ok()?.iter().rev().find_map(|word| match word.strip_prefix("init_on_alloc=")? {
            "1" | "on" | "y" => Some(true),
            _ => Some(false),
        });
    asked.or_else(|| {
        let config = procfs::kernel_config().ok()?;
        Some(config.get("CONFIG_INIT_ON_ALLOC_DEFAULT_ON") == Some(&procfs::ConfigSetting::Yes))
    })
}

/// Whether the kernel charges this process' memory to a cgroup other than the root, which costs each page time.
fn is_in_memory_cgroup() -> Option<bool> {
    let groups = procfs::process::Process::myself().and_then(|process| process.cgroups()).ok()?;
    // Of version 1, else of version 2, which names no controllers.
    let first = groups.0.iter().find(|group| group.controllers.iter().any(|name| name == "memory"));
    let found = first.or_else(|| groups.0.iter().find(|group| group.controllers.is_empty()))?;
    Some(found.pathname != "/")
}

/// Settings of the kernel that change what faults, unmapping and clearing cost. One that this kernel lacks is left out.
fn kernel_settings() -> Map<String, Value> {
    let preemption = read("/proc/version").and_then(|version| {
        let word = version.split_whitespace().find(|word| word.starts_with("PREEMPT"))?;
        Some(word.to_owned())
    });
    let settings = [
        ("preemption", preemption),
        ("numa_balancing", read("/proc/sys/kernel/numa_balancing")),
        ("lru_gen", read("/sys/kernel/mm/lru_gen/enabled")),
        ("ksm", read("/sys/kernel/mm/ksm/run")),
    ];
    settings.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))).collect()
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
