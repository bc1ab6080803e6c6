//! The words of which modules and types are named: each is in the glossary, or on the list of ordinary words.
//!
//! The list (`ordinary.txt`) has words of English, of Linux and of programming in their usual sense. A word with a sense
//! of its own here belongs into the glossary, however ordinary it looks.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, Token};

/// Words in their usual sense.
pub(crate) const ORDINARY: &str = include_str!("ordinary.txt");

/// Endings of which a name may have one more than the word that explains it.
const ENDINGS: [(&str, &str); 10] = [
    ("", ""),
    ("s", ""),
    ("es", ""),
    ("ies", "y"),
    ("d", ""),
    ("ed", ""),
    ("ing", ""),
    ("ing", "e"),
    ("er", ""),
    ("r", ""),
];

/// The terms that the page defines: what stands in bold at the start of a row, several separated by commas.
pub(crate) fn terms(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| **")?.split("**").next());
    rows.flat_map(|heads| heads.split(',')).map(|term| term.trim().to_lowercase()).collect()
}

/// The words of the names of modules and types that other modules may use, each with a name that has it.
fn words(files: &[Source]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut add = |name: &str| {
        for word in split(name) {
            found.entry(word).or_insert_with(|| name.to_string());
        }
    };
    for file in files.iter().filter(|file| !file.is_test()) {
        let Some((_, below)) = file.path.split_once("/src/") else { continue };
        below.trim_end_matches(".rs").split('/').for_each(&mut add);
        let tokens = file.tokens();
        for (at, pair) in tokens.windows(2).enumerate() {
            let [Token::Word(kind, _), Token::Word(name, _)] = pair else { continue };
            let is_type = ["enum", "struct", "trait", "type", "union"].contains(&kind.as_str());
            if is_type && ends_in_pub(&tokens[..at]) {
                add(name);
            }
        }
    }
    found
}

/// Whether the last tokens are `pub`, where it holds (`pub(in crate::x)`), and `unsafe`, as they stand before an item.
fn ends_in_pub(tokens: &[Token]) -> bool {
    let mut before = tokens;
    if before.last().is_some_and(|token| token.is_word("unsafe")) {
        before = &before[..before.len() - 1];
    }
    if let Some(Token::Close) = before.last() {
        let mut depth = 0;
        let opens = before.iter().rposition(|token| {
            depth += i32::from(matches!(token, Token::Close)) - i32::from(matches!(token, Token::Open(..)));
            depth == 0
        });
        before = &before[..opens.unwrap_or_default()];
    }
    before.last().is_some_and(|token| token.is_word("pub"))
}

/// `page_alloc` and `PageAlloc` are two words; `P4D` is one, and numbers and single letters are none.
fn split(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for c in name.chars() {
        if c.is_ascii_alphabetic() {
            if !before.is_ascii_alphabetic() || c.is_ascii_uppercase() && before.is_ascii_lowercase() {
                words.push(String::new());
            }
            words.last_mut().expect("a word has begun").push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words.retain(|word| word.len() > 1);
    words
}

/// Complaints about names with words that neither the page nor the list has, and about words that both have.
pub(crate) fn check(page: &str, ordinary: &str, files: &[Source]) -> Vec<String> {
    let terms = terms(page);
    let ordinary: BTreeSet<&str> = ordinary.split_whitespace().collect();
    let knows = |word: &str| terms.contains(word) || ordinary.contains(word);
    let is_known = |word: &str| {
        ENDINGS.iter().any(|(longer, shorter)| {
            word.strip_suffix(longer).is_some_and(|stem| knows(&format!("{stem}{shorter}")))
        })
    };
    let unknown = words(files).into_iter().filter(|(word, _)| !is_known(word));
    let mut complaints = Vec::from_iter(unknown.map(|(word, name)| {
        format!("`{word}` of `{name}` is neither in docs/glossary.md nor an ordinary word")
    }));
    let both = terms.iter().filter(|term| ordinary.contains(term.as_str()));
    complaints.extend(both.map(|term| format!("`{term}` is in docs/glossary.md, and called ordinary")));
    complaints
}

#[test]
fn a_word_that_is_explained_nowhere_is_found() {
    let page = "# Words\n\n| word | meaning |\n|---|---|\n| **folio** | frames |\n| **split, merge** | of a folio |\n";
    let files = |text: &str| {
        [Source::new("crates/x/src/page_alloc/folio.rs", text), Source::new("crates/x/src/lib.rs", "")]
    };
    let ordinary = "alloc page lib\nerror guest";
    let good =
        "pub struct Folio; pub(crate) enum SplitError { A } struct Private; pub type PagesMerged = u8;";
    assert_eq!(check(page, ordinary, &files(good)), [""; 0]);
    for bad in ["pub struct FolioRoom;", "pub(in crate::x) unsafe trait Rooms {}", "pub enum RoomError {}"] {
        let found = check(page, ordinary, &files(bad));
        assert_eq!(found.len(), 1, "{bad}");
        assert!(found[0].starts_with("`room"), "{found:?}");
    }
    let both = check(page, "alloc page lib folio", &files(""));
    assert_eq!(both, ["`folio` is in docs/glossary.md, and called ordinary"]);
}
