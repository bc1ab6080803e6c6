//! `quire verify` on the running kernel, where this user may change its settings.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::host::thp::{root, selected, sizes};
use lab::settings::Places;

/// Longer than other runs hold the settings.
const PATIENCE: Duration = Duration::from_secs(600);

/// All settings that a run changes, at a moment at which no run of another process has changed them.
pub(crate) fn settled() -> BTreeMap<PathBuf, Option<String>> {
    let journal = Places::of_this_machine().journal();
    until("another run has changed the settings for long", || {
        let found = (!journal.exists()).then(settings)?;
        (!journal.exists()).then_some(found)
    })
}

fn settings() -> BTreeMap<PathBuf, Option<String>> {
    let khugepaged = ["max_ptes_none", "pages_to_scan", "scan_sleep_millisecs"]
        .map(|name| root().join("khugepaged").join(name));
    let shmem = sizes(&root()).into_values().map(|path| path.with_file_name("shmem_enabled"));
    let pools = ["hugepages-2048kB", "hugepages-1048576kB"]
        .map(|size| Places::of_this_machine().pools.join(size).join("nr_hugepages"));
    let all = sizes(&root()).into_values().chain(khugepaged).chain(shmem).chain(pools);
    let all = all.chain([root().join("shmem_enabled")]);
    all.map(|path| (path.clone(), selected(&path))).collect()
}

/// Whether this user may choose the folio sizes of the kernel, these (in KiB) among them.
pub(crate) fn may_choose(wanted: &[usize]) -> bool {
    let sizes = sizes(&root());
    let mut paths = wanted.iter().map(|kib| sizes.get(kib));
    paths.all(|path| path.is_some_and(|path| OpenOptions::new().write(true).open(path).is_ok()))
}

pub(crate) fn quire(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_quire")).args(arguments).output().expect("quire runs")
}

/// Whether `verify` samples runs here, on settings that this user may change.
pub(crate) fn samples() -> bool {
    may_choose(&[64]) && Command::new("perf").arg("--version").output().is_ok()
}

/// Waits until the process with this number has ended.
pub(crate) fn ends(number: &str) {
    let command_line = PathBuf::from("/proc").join(number.trim()).join("cmdline");
    // One that has ended has none.
    until("the program goes on", || {
        std::fs::read(&command_line).unwrap_or_default().is_empty().then_some(())
    });
}

/// Waits until there is something.
pub(crate) fn until<T>(otherwise: &str, mut there_is: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < PATIENCE, "{otherwise}");
        if let Some(found) = there_is() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_program_that_cannot_be_run_is_an_error() {
    let output = quire(&["verify", "--", "/no such program"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{error}");
    assert!(output.stdout.is_empty());
    assert!(error.starts_with("quire: "), "{error}");
    for wrong in
        [&["verify"][..], &["verify", "a.qtrace", "--", "true"], &["verify", "--sizes", "3K", "--", "true"]]
    {
        assert_eq!(quire(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// The process of one run, stopped at the end of each process or not.
#[test]
fn a_run_gets_its_real_time_signals() {
    for options in [&["--see-peak"][..], &[]] {
        for (script, code) in [("trap 'exit 7' 34; kill -34 $$; exit 1", 7), ("kill -34 $$", 128 + 34)] {
            let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
            quire.arg("verify-run").args(options).args(["--", "sh", "-c", script]);
            let output = quire.output().expect("quire runs");
            let counted = String::from_utf8_lossy(&output.stdout);
            assert!(counted.starts_with(&format!("{{\"exit_code\":{code},")), "{output:?}");
        }
    }
}
