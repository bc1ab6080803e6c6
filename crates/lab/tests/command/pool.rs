//! `quire verify` with a pool of huge pages.

use std::path::Path;

use serde_json::Value;

use crate::advise::{text, words};
use crate::verify::settled;
use crate::verify_settings::{compared, number, program, verify};

#[test]
fn a_program_finds_its_pages_in_the_pool() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = program(directory.path(), &[]) else { return };
    if !Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").exists() {
        eprintln!("no pool of huge pages: not tested");
        return;
    }
    let options = ["--format", "json", "--sizes", "4K", "--pool", "2M=6", "--", &program, "pool", "8"];
    let (before, output) = (settled(), verify(&options));
    let said = words(&text(&output.stderr));
    if said.contains("memory is in use, or in pieces") || said.contains("this machine has memory for") {
        eprintln!("this machine has no six pages of 2 MiB now: not tested");
        return;
    }
    let line = compared(&options, &output, &before);
    let row = &line["sizes"][0];
    assert_eq!(row["exit_codes"], Value::from(vec![0]), "{line}");
    assert_eq!(number(row, "/pool_bytes/predicted"), f64::from(8 << 20), "{line}");
    assert_eq!(number(row, "/pool_bytes/measured/most"), f64::from(8 << 20), "{line}");
    assert_eq!(line["conditions"]["pool"], "2M=6");
    // More than the machine has: it is not asked for, so that other programs keep their memory.
    let before = settled();
    let refused = verify(&["--sizes", "4K", "--pool", "2M=999999999", "--", &program, "pool", "8"]);
    let why = words(&text(&refused.stderr));
    assert!(!refused.status.success() && why.contains("this machine has memory for"), "{why}");
    assert_eq!(settled(), before, "the settings are as before");
}
