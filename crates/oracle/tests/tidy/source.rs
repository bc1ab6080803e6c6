//! The repository's texts, and the tokens of the Rust files among them.

use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

/// What stands in a checkout and is not the repository's own text.
const SKIPPED: [&str; 4] = [".git", "out", "shared", "target"];

/// One file.
#[derive(Clone)]
pub(crate) struct Source {
    /// From the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// Whether it is a test, or serves tests alone.
    pub(crate) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests" || part == "tests.rs")
    }

    /// All tokens, flat; comments are none, and a group's delimiters are left out.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        let stream: TokenStream = self.text.parse().unwrap_or_else(|error| panic!("{}: {error}", self.path));
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        tokens
    }
}

/// A token, as far as the rules look at it.
pub(crate) enum Token {
    Word(String, Span),
    Sign(char),
    /// The start of a group, and where it ends.
    Open(Delimiter, Span),
    Close,
    Other,
}

impl Token {
    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Word(text, _) if text == word)
    }
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    for tree in stream {
        match tree {
            TokenTree::Ident(word) => out.push(Token::Word(word.to_string(), word.span())),
            TokenTree::Punct(sign) => out.push(Token::Sign(sign.as_char())),
            TokenTree::Literal(_) => out.push(Token::Other),
            TokenTree::Group(group) => {
                out.push(Token::Open(group.delimiter(), group.span_close()));
                flatten(group.stream(), out);
                out.push(Token::Close);
            }
        }
    }
}

/// Every file of the repository.
pub(crate) fn all() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = Vec::new();
    visit(&root, "", &mut sources);
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(sources.len() > 100, "the repository was not found");
    sources
}

fn visit(root: &Path, below: &str, out: &mut Vec<Source>) {
    let entries = fs::read_dir(root.join(below)).unwrap_or_else(|error| panic!("{below}: {error}"));
    for entry in entries {
        let entry = entry.expect("a directory that can be read");
        let name = entry.file_name().into_string().expect("a name in UTF-8");
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let kind = entry.file_type().expect("a file type");
        if SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if kind.is_dir() {
            visit(root, &path, out);
        } else if kind.is_file() {
            // Traces and the like are there, and have no text.
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            out.push(Source { path, text });
        }
    }
}

/// The Rust files below a path.
pub(crate) fn rust(sources: &[Source], below: &str) -> Vec<Source> {
    let wanted = |source: &&Source| source.path.starts_with(below) && source.path.ends_with(".rs");
    sources.iter().filter(wanted).cloned().collect()
}
