//! Puts the commit, the compiler and the hashes of the sources into the binary, so that every measured line can say what
//! it measured.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use proc_macro2::{TokenStream, TokenTree};

/// The folders whose sources experiments measure or are measured by, from the root of the repository.
const MEASURED: [&str; 8] = [
    "crates/quire/src",
    "crates/hosted/src",
    "crates/interop/src",
    "crates/replay/src/calibrate",
    "crates/replay/src/host",
    "crates/replay/src/replay",
    "crates/lab/src/bench",
    "kernel/src",
];

fn main() {
    println!("cargo::rustc-env=QUIRE_COMMIT={}", commit());
    println!("cargo::rustc-env=QUIRE_RUSTC={}", compiler());
    println!("cargo::rustc-env=QUIRE_OPT_LEVEL={}", env::var("OPT_LEVEL").unwrap_or_default());
    // A new commit moves the reflog, an edit changes the sources: either makes the name stale.
    if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=../");
    println!("cargo::rerun-if-changed=../../kernel/src");
    let target = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a folder for output"));
    fs::write(target.join("code.rs"), sources()).expect("the folder for output can be written");
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
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    output(&rustc, &["--version"]).unwrap_or_else(|| "unknown".into())
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A table of every source file and the hash of its tokens, as Rust.
fn sources() -> String {
    let root = Path::new("../..");
    let mut files = Vec::new();
    for folder in MEASURED {
        visit(&root.join(folder), folder, &mut files);
    }
    files.sort();
    let mut text =
        "/// Every source file and the hash of its tokens.\nstatic SOURCES: &[Hashed] = &[\n".to_owned();
    for (name, hash) in files {
        let _ = writeln!(text, "    ({name:?}, {hash:#x}),");
    }
    text + "];\n"
}

fn visit(folder: &Path, name: &str, files: &mut Vec<(String, u64)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let (path, name) = (entry.path(), format!("{name}/{file}"));
        if file == "tests" || file == "tests.rs" {
            continue;
        }
        if path.is_dir() {
            visit(&path, &name, files);
        } else if let (true, Ok(text)) =
            (file.ends_with(".rs") || file.ends_with(".c"), fs::read_to_string(&path))
        {
            files.push((name, hash(&text)));
        }
    }
}

/// The hash FNV-1a of the tokens of `text`, or of its bytes when it is no Rust.
fn hash(text: &str) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325;
    match text.parse::<TokenStream>() {
        Ok(tokens) => add_tokens(&mut sum, tokens),
        Err(_) => add(&mut sum, text),
    }
    sum
}

/// Comments are no tokens; documentation is, as an attribute, and is left out.
fn add_tokens(sum: &mut u64, tokens: TokenStream) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(sign) if sign.as_char() == '#' => {
                let inner =
                    tokens.next_if(|next| matches!(next, TokenTree::Punct(sign) if sign.as_char() == '!'));
                if tokens.next_if(is_documentation).is_none() {
                    add(sum, if inner.is_some() { "#!" } else { "#" });
                }
            }
            TokenTree::Group(group) => {
                add(sum, &format!("{:?}", group.delimiter()));
                add_tokens(sum, group.stream());
                add(sum, "end");
            }
            other => add(sum, &other.to_string()),
        }
    }
}

fn is_documentation(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(word)) if word == "doc")
}

fn add(sum: &mut u64, text: &str) {
    // A zero byte ends each token, so that `ab c` and `a bc` differ.
    for byte in text.bytes().chain([0]) {
        *sum = (*sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
}
