//! The running kernel's own settings come back after a kill of an experiment that changes its pools of huge pages.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::host::thp::{root, selected, sizes};
use lab::settings::Places;

/// Longer than an experiment takes to come to the kernel's arms on a busy machine, or other runs hold the settings.
const PATIENCE: Duration = Duration::from_secs(600);

/// Experiments that grow and shrink the kernel's pools, one kill each; with `QUIRE_LONG` twenty.
const KILLED: [&str; 3] = ["hugetlb-pool", "demote", "hugetlb-pool"];

const SAVING: &str = "/proc/sys/vm/hugetlb_optimize_vmemmap";

type Values = BTreeMap<PathBuf, Option<String>>;

/// All that such an experiment may change.
fn settings(places: &Places) -> Values {
    let pools = fs::read_dir(&places.pools).into_iter().flatten().flatten();
    let pools = pools.map(|pool| pool.path().join("nr_hugepages"));
    let saving = [SAVING.into(), places.min_free.clone()];
    let all = sizes(&root()).into_values().chain(pools).chain(saving);
    all.map(|path| (path.clone(), selected(&path))).collect()
}

/// The same at a moment at which no run has changed them.
fn settled(places: &Places) -> Values {
    let since = Instant::now();
    loop {
        let found = (!places.journal().exists()).then(|| settings(places));
        if let Some(found) = found.filter(|_| !places.journal().exists()) {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "a run has changed the settings for long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn can_change(places: &Places) -> bool {
    let pool = places.pools.join("hugepages-2048kB/nr_hugepages");
    [&pool, Path::new(SAVING)].iter().all(|path| OpenOptions::new().write(true).open(path).is_ok())
}

fn quire(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(arguments).env_remove("QUIRE_SETTINGS");
    command
}

/// Kills come at a random moment after the first change shows.
#[test]
fn the_kernels_own_pools_come_back_after_a_kill() {
    let _alone = crate::alone();
    let places = Places::under("/".into());
    if !can_change(&places) {
        eprintln!("no pools of huge pages that this user may change: not tested");
        return;
    }
    let long = std::env::var_os("QUIRE_LONG").is_some();
    let seed = if long { fastrand::u64(..) } else { 4 };
    let mut random = fastrand::Rng::with_seed(seed);
    let mut changed = 0;
    for (round, experiment) in KILLED.repeat(if long { 20 } else { 1 }).into_iter().enumerate() {
        let before = settled(&places);
        let mut bench = quire(&["bench", experiment, "--smoke"]);
        let mut run = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("quire runs");
        let since = Instant::now();
        while settings(&places) == before {
            let ended = run.try_wait().expect("it is ours");
            assert!(ended.is_none(), "{experiment} ended and changed nothing: {ended:?}");
            assert!(since.elapsed() < PATIENCE, "{experiment} changes nothing");
            std::thread::sleep(Duration::from_micros(200));
        }
        // Most of such an experiment is over after a second.
        let most = if long && random.bool() { 1_000_000 } else { 50_000 };
        std::thread::sleep(Duration::from_micros(random.u64(0..most)));
        run.kill().expect("it is ours");
        run.wait().expect("it is ours");
        changed += usize::from(settings(&places) != before);
        let next: &[&str] = if round == 0 { &["restore"] } else { &["completions", "bash"] };
        let output = quire(next).output().expect("quire runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{next:?}: {told}");
        assert_eq!(settled(&places), before, "{experiment}, seed {seed}, {next:?}: {told}");
    }
    assert!(changed > 0, "no kill came while settings were changed");
}
