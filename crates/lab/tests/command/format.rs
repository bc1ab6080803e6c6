//! `--format json`: every command whose output can be data writes JSON, and nothing else, to standard output.

use std::process::{Command, Output};

use serde_json::Value;

use crate::bundled;

/// The commands that have the option.
const COMMANDS: [&str; 8] =
    ["advise", "bench", "calibrate", "compare", "record", "replay", "restore", "verify"];

fn quire(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(arguments).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.output().expect("quire runs")
}

/// Standard output, one value a line.
fn values(arguments: &[&str]) -> Vec<Value> {
    let output = quire(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8(output.stdout).expect("text");
    let values: Vec<Value> = serde_json::Deserializer::from_str(&text)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap_or_else(|wrong| panic!("{arguments:?}: {wrong}: {text}{error}"));
    assert!(!values.is_empty(), "{arguments:?}: {error}");
    values
}

#[test]
fn figures_are_the_only_thing_on_standard_output() {
    let gcc = bundled::directory().join("gcc.qtrace").to_str().expect("text").to_owned();
    let replayed = values(&["replay", "--rounds", "1", "--format", "json", &gcc]);
    assert!(replayed.len() == 1 && replayed[0]["faults_taken"].is_u64(), "{replayed:?}");
    for row in values(&["bench", "boot", "--smoke", "--format", "json"]) {
        assert_eq!(row["experiment"], "boot", "{row}");
    }
    for experiment in values(&["bench", "--list", "--format", "json"]) {
        assert!(experiment["name"].is_string() && experiment["question"].is_string(), "{experiment}");
    }
    let compared = values(&["compare", "--smoke", "--only", "teardown", "--format", "json"]);
    assert!(compared.iter().any(|row| row["experiment"] == "unmap"), "{compared:?}");
    let measured = values(&["calibrate", "--smoke", "--format", "json"]);
    assert!(measured.len() == 1 && measured[0].is_object(), "{measured:?}");
}

#[test]
fn a_recording_is_summed_up_as_json() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("t.qtrace").to_str().expect("text").to_owned();
    let recorded =
        ["record", "--format", "json", "-o", &trace, "--", "sh", "-c", "echo said; (true); exit 3"];
    let output = quire(&recorded);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("an object");
    assert_eq!((&summary["exit_code"], &summary["trace"]), (&3.into(), &trace.as_str().into()));
    assert_eq!(summary["forks"], 1, "{summary}");
    assert!(summary["calls"]["mmap"]["count"].as_u64() > Some(0), "{summary}");
    assert!(summary["faults"]["all"].as_u64() > Some(10), "{summary}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("said\n"), "{output:?}");
    // Both on one stream could not be told apart.
    let refused = quire(&["record", "--format", "json", "-o", "-", "--", "true"]);
    assert!(refused.status.code() == Some(125) && refused.stdout.is_empty(), "{refused:?}");
}

#[test]
fn help_and_completions_name_the_option() {
    let script = quire(&["completions", "fish"]).stdout;
    let script = String::from_utf8(script).expect("text");
    for command in COMMANDS {
        let help = String::from_utf8(quire(&[command, "--help"]).stdout).expect("text");
        assert!(help.contains("--format <FORMAT>"), "{command}: {help}");
        let of_command = format!("__fish_quire_using_subcommand {command}\" -l format ");
        assert!(script.contains(&of_command), "{command}: {script}");
    }
}
