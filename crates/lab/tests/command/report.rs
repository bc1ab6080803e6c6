//! `quire report`: the page of measured figures is what its data say.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

fn report(arguments: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Command::new(env!("CARGO_BIN_EXE_quire"))
        .arg("report")
        .args(arguments)
        .current_dir(root)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Fails after measured code, a goal, a note or a result changed: `quire report tables` writes the page again.
#[test]
fn the_page_of_measured_figures_matches_its_data() {
    let checked = report(&["tables", "--check"]);
    assert!(checked.status.success(), "{}", said(&checked));
}

/// Of two experiments, since the pages of all of them take a second and the test above checks those.
#[test]
fn a_page_that_does_not_match_is_refused_and_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let (page, results) = (folder.path().join("page.md"), folder.path().join("results"));
    std::fs::write(&page, "# Measured\nby hand\n").unwrap();
    std::fs::create_dir(&results).unwrap();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
    for name in ["aged", "unmap", "notes"] {
        symlink(kept.join(name), results.join(name)).unwrap();
    }
    let (page, results) = (page.to_str().unwrap(), results.to_str().unwrap());
    let report = |arguments: &[&str]| report(&[arguments, &["--results", results]].concat());
    let checked = report(&["tables", "--check", "--page", page]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(
        said(&checked).contains("from line 2 on: write it with `quire report tables`"),
        "{}",
        said(&checked)
    );
    assert!(report(&["tables", "--page", page]).status.success());
    assert!(report(&["tables", "--check", "--page", page]).status.success());
    let of_unmap = folder.path().join("measured/unmap.md");
    let written = std::fs::read_to_string(&of_unmap).unwrap();
    std::fs::write(&of_unmap, written.replace("## The newest runs", "## The best runs")).unwrap();
    let checked = report(&["tables", "--check", "--page", page]);
    assert!(said(&checked).contains("unmap.md differs from its data"), "{}", said(&checked));
    assert!(report(&["tables", "--page", page]).status.success());
    std::fs::write(folder.path().join("measured/removed.md"), "# Of an experiment that is no more\n")
        .unwrap();
    let checked = report(&["tables", "--check", "--page", page]);
    assert!(said(&checked).contains("removed.md is the page of no experiment"), "{}", said(&checked));
}

/// Sites that show files do not render Markdown of more than 512 KiB: the one page of all tables had grown beyond it.
#[test]
fn each_page_of_measured_figures_is_small_enough_to_be_shown() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = std::fs::read_dir(docs.join("measured")).unwrap().map(|page| page.unwrap().path());
    let pages: Vec<_> = pages.chain([docs.join("measured.md")]).collect();
    assert!(pages.len() > 20, "{pages:?}");
    for page in pages {
        let bytes = std::fs::metadata(&page).unwrap().len();
        assert!(bytes < 512 << 10, "{} has {bytes} bytes", page.display());
    }
}

#[test]
fn a_smoke_run_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, results) = (folder.path().join("rows.json"), folder.path().join("results"));
    let (rows, results) = (rows.to_str().unwrap(), results.to_str().unwrap());
    let mut bench = Command::new(env!("CARGO_BIN_EXE_quire"));
    assert!(bench.args(["bench", "boot", "--smoke", "--json", rows]).output().unwrap().status.success());
    let added = report(&["add", rows, "--results", results]);
    assert_eq!(added.status.code(), Some(1));
    assert!(said(&added).contains("smoke"), "{}", said(&added));
}

/// The load of the machine differs from program to program that an experiment starts. Each was taken for a launch of its
/// own, and no ratio was found between two arms.
#[test]
fn rows_with_another_load_are_of_the_same_launch() {
    let folder = tempfile::tempdir().unwrap();
    let row = |arm: &str, ns: f64, load: f64| {
        serde_json::json!({"experiment": "guest", "case": "threads", "arm": arm, "metric": "time", "unit": "ns",
            "better": "lower", "median": ns, "samples": [ns], "counters": {}, "params": {}, "commit": "0123456789ab",
            "code": "", "machine": {"cpu": "a", "cpus": 2, "opt_level": "3", "load_at_start": load}})
    };
    let (rows, results) = (folder.path().join("rows.json"), folder.path().join("results"));
    std::fs::write(&rows, format!("{}\n{}\n", row("linux-6.1", 9.0, 0.1), row("quire", 3.0, 1.2))).unwrap();
    let add = ["add", rows.to_str().unwrap(), "--results", results.to_str().unwrap()];
    for launches in 1..=2 {
        let added = report(&add);
        assert!(added.status.success(), "{}", said(&added));
        let kept = std::fs::read_dir(results.join("guest")).unwrap().next().unwrap().unwrap().path();
        let kept = std::fs::read_to_string(kept).unwrap();
        let header: serde_json::Value = serde_json::from_str(kept.lines().next().unwrap()).unwrap();
        assert_eq!(header["launches"].as_array().unwrap().len(), launches, "{kept}");
    }
}

#[test]
fn a_file_without_figures_is_refused_with_what_to_give() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let text = folder.path().join("text");
    std::fs::write(&text, "no figures\n").unwrap();
    for file in ["traces/gcc.qtrace", text.to_str().unwrap(), "no-such-file"] {
        let output = report(&["html", "-o", page.to_str().unwrap(), file]);
        let expected = format!("quire: cannot show {file}; give what advise, verify, compare or bench wrote");
        assert!(output.status.code() == Some(1) && said(&output).starts_with(&expected), "{}", said(&output));
    }
    let output = report(&["tables", "--results", "no-such-folder"]);
    let expected = "quire: cannot read no-such-folder; give the folder of the results by --results: ";
    assert!(said(&output).starts_with(expected), "{}", said(&output));
}
