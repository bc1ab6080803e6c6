//! What `quire record` lets a program keep, and what it drops rather than cost too much.

use std::path::Path;
use std::process::Command;

use crate::advise::{Copy, number, text, touches, words};
use crate::recorder::{Recording, tiers};
use crate::small_trace::{anonymous, program};
use lab::settings::Places;
use lab::trace::EventKind;
use serde_json::Value;

const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const START: u64 = 0x1000_0000;

#[test]
fn huge_pages_stay_as_they_are_if_asked_and_the_header_says_so() {
    let setting = std::fs::read_to_string(SETTING).unwrap_or_default();
    if !setting.contains("[always]") && !setting.contains("[madvise]") {
        return println!("skipped: this machine has no transparent huge pages");
    }
    // While another test has changed the settings, every size may be off, and that is what a header says.
    let journal = Places::of_this_machine().journal();
    for tier in tiers() {
        for (thp, enabled) in [("off", "0"), ("as-is", "1")] {
            let options = ["--quiet", "--tier", tier, "--thp", thp];
            let was_changed = journal.exists();
            let mut run = Recording::of_script(&options, "cat /proc/self/status");
            assert!(run.end().success(), "{}", run.stderr());
            let status = run.text("stdout");
            let seen = status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).map(str::trim);
            assert_eq!(seen, Some(enabled), "{tier}, {thp}");
            if thp == "off" || !was_changed && !journal.exists() {
                assert_eq!(run.trace().0.thp_disabled, thp == "off", "{tier}");
            }
        }
    }
}

/// A trace of folios of 2 MiB has one fault for each, which looks as if no other page had been touched.
#[test]
fn nothing_is_advised_where_folios_were_large() {
    let mut dense = program();
    dense.event(10, anonymous(START, 64 << 20));
    touches(&mut dense, START, 64 << 8, 512);
    dense.exit(10);
    let advise = |overall: &str, trace: &Path| Copy::new(&[("enabled", overall)]).advise_for("memory", trace);
    let small = advise("[always] madvise never", &dense.write());
    assert_eq!((&small["chosen"], &small["recorded_large"]), (&"4K".into(), &false.into()), "{small}");
    dense.keeps_huge_pages();
    let file = dense.write();
    let large = advise("[always] madvise never", &file);
    assert_eq!((&large["chosen"], &large["best"]), (&Value::Null, &"4K".into()), "{large}");
    assert!(large["recorded_large"] == true && large["do"] == Value::Array(Vec::new()), "{large}");
    // With these settings it got single pages, since it asks for none.
    let asked = advise("always [madvise] never", &file);
    assert_eq!(&asked["recorded_large"], &Value::from(false), "{asked}");
    let root = Copy::new(&[("enabled", "[always] madvise never")]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    let output =
        command.arg("advise").arg(&file).env("QUIRE_SETTINGS", root.path()).output().expect("it runs");
    let said = words(&text(&output.stdout));
    assert!(said.contains("verdict: none: folios may have been large"), "{said}");
    assert!(number(&large["sets"][0], "/wasted_bytes") > 0, "{large}");
}

/// It starts 400 programs, one after the other.
const BUSY: &str = "i=0; while [ $i -lt 400 ]; do /bin/true; i=$((i+1)); done; exit 3";

#[test]
fn a_started_program_is_not_slowed_down_beyond_the_bound() {
    if !tiers().contains(&"privileged") {
        return println!("skipped: a bound needs root");
    }
    let mut bounded = Recording::of_script(&["--max-overhead", "0.001"], BUSY);
    assert_eq!(bounded.end().code(), Some(3), "{}", bounded.stderr());
    assert!(
        bounded.stderr().contains("NOT RECORDED") && bounded.stderr().contains("cost:"),
        "{}",
        bounded.stderr()
    );
    let (header, events) = bounded.trace();
    let lost = events.iter().map(|event| match event.kind {
        EventKind::Lost { records } => records,
        _ => 0,
    });
    assert!(header.totals.lost > 1000 && lost.sum::<u64>() == header.totals.lost, "{:?}", header.totals);
    let execs = events.iter().filter(|event| matches!(event.kind, EventKind::Exec { .. })).count();
    assert_eq!(execs, 401, "programs and calls stay recorded");
    let mut whole = Recording::of_script(&["--max-overhead", "900"], BUSY);
    assert_eq!(whole.end().code(), Some(3), "{}", whole.stderr());
    assert!(whole.stderr().contains("cost:") && whole.trace().0.totals.lost == 0, "{}", whole.stderr());
    let mut user = Recording::of_script(&["--tier", "user", "--max-overhead", "5"], "true");
    assert!(user.end().code() == Some(125) && user.stderr().contains("needs root"), "{}", user.stderr());
}
