//! Modules of the library use only those before them in `docs/architecture.md`.

use crate::source::{Source, Token};

/// The order as the page says it: the block marked `order`.
pub(crate) fn order_of(page: &str) -> Vec<String> {
    let (_, rest) = page.split_once("```order\n").expect("the page has a block marked `order`");
    let (block, _) = rest.split_once("```").expect("the block ends");
    block.split_whitespace().map(str::to_string).collect()
}

/// Complaints about files of `crates/quire/src`; tests among them may use what they like.
pub(crate) fn check(order: &[String], files: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut found: Vec<String> = Vec::new();
    for file in files.iter().filter(|file| !file.is_test()) {
        let Some(path) = file.path.strip_prefix("crates/quire/src/") else { continue };
        let parts: Vec<&str> =
            path.trim_end_matches(".rs").split('/').filter(|&part| part != "mod").collect();
        if parts == ["lib"] {
            continue;
        }
        let module = parts[0];
        if !found.iter().any(|known| known == module) {
            found.push(module.to_string());
        }
        let place = |module: &str| order.iter().position(|known| known == module);
        let Some(own) = place(module) else {
            complaints.push(format!("{}: `{module}` has no place in the order", file.path));
            continue;
        };
        for used in used_by(&file.tokens(), parts.len()) {
            if place(&used).is_none_or(|at| at > own) {
                complaints.push(format!("{}: `{module}` uses `{used}`, which is not before it", file.path));
            }
        }
    }
    let missing = order.iter().filter(|module| !found.contains(module));
    complaints.extend(missing.map(|module| format!("the order names `{module}`, which is no module")));
    complaints.dedup();
    complaints
}

/// The top-level modules that paths from the crate's root, or from as many parents as the file is deep, lead to.
fn used_by(tokens: &[Token], depth: usize) -> Vec<String> {
    let mut used = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let parents = tokens[at..].chunks(3).take_while(|step| is_step(step, "super")).count();
        let rooted = is_step(tokens.get(at..at + 3).unwrap_or_default(), "crate");
        let follows = if rooted {
            at + 3
        } else if parents == depth {
            at + 3 * parents
        } else {
            at += 1;
            continue;
        };
        match tokens.get(follows) {
            Some(Token::Word(word, _)) => used.push(word.clone()),
            Some(Token::Open(..)) => used.extend(listed(&tokens[follows + 1..])),
            _ => {}
        }
        at = follows;
    }
    used
}

/// Whether the three tokens are `word ::`.
fn is_step(tokens: &[Token], word: &str) -> bool {
    matches!(tokens, [first, Token::Sign(':'), Token::Sign(':')] if first.is_word(word))
}

/// The first word of each member of a list of paths, up to the end of the list.
fn listed(tokens: &[Token]) -> Vec<String> {
    let (mut depth, mut fresh, mut words) = (0, true, Vec::new());
    for token in tokens {
        match token {
            Token::Open(..) => depth += 1,
            Token::Close if depth == 0 => break,
            Token::Close => depth -= 1,
            Token::Sign(',') if depth == 0 => fresh = true,
            Token::Word(word, _) if fresh && depth == 0 => {
                words.push(word.clone());
                fresh = false;
            }
            _ => {}
        }
    }
    words
}

#[test]
fn a_module_that_reaches_up_is_found() {
    let order = order_of("text\n```order\nlow middle\nhigh\n```\n");
    let file = |path: &str, text: &str| Source::new(&format!("crates/quire/src/{path}"), text);
    let good = [
        file("lib.rs", "pub mod high;"),
        file("low.rs", "use core::fmt; // crate::high in a comment\n"),
        file("middle/mod.rs", "use crate::low::Thing; use self::part::Other;"),
        file("middle/part.rs", "use super::Thing; fn f() { crate::low::g() }"),
        file("middle/tests.rs", "use crate::high::Thing;"),
        file("high.rs", "use crate::{low, middle::{self, Thing}};"),
    ];
    assert_eq!(check(&order, &good), [""; 0]);
    for bad in [
        "use crate::high::Thing;",
        "fn f() { crate::high::g() }",
        "use crate::{low::Thing, high};",
        "use super::super::high::Thing;",
        "macro_rules! m { () => { crate::high::g() } }",
    ] {
        let mut files = good.to_vec();
        files[3].text = bad.into();
        let complaints = check(&order, &files);
        assert_eq!(
            complaints,
            ["crates/quire/src/middle/part.rs: `middle` uses `high`, which is not before it"]
        );
    }
    assert_eq!(check(&order, &good[..4]), ["the order names `high`, which is no module"]);
    let stranger = [good.to_vec(), vec![file("strange.rs", "")]].concat();
    assert_eq!(
        check(&order, &stranger),
        ["crates/quire/src/strange.rs: `strange` has no place in the order"]
    );
}
