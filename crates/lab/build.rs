//! Puts the commit and the compiler into the binary, so that every measured line can say what it measured.

use std::process::Command;

fn main() {
    println!("cargo::rustc-env=QUIRE_COMMIT={}", commit());
    println!("cargo::rustc-env=QUIRE_RUSTC={}", compiler());
    println!("cargo::rustc-env=QUIRE_OPT_LEVEL={}", std::env::var("OPT_LEVEL").unwrap_or_default());
    // A new commit moves the reflog, an edit changes the sources: either makes the name stale.
    if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=../");
}

/// The short commit, `-dirty` added when tracked files differ from it, or `unknown` outside a repository.
fn commit() -> String {
    let Some(commit) = output("git", &["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    match output("git", &["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}-dirty"),
    }
}

fn compiler() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    output(&rustc, &["--version"]).unwrap_or_else(|| "unknown".into())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
