//! What a Rust file declares, imports and names by path, read from its tokens. Code under `#[cfg(test)]` is left out.

use std::collections::{HashMap, HashSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The words that a path consists of; `*` at the end of a glob import.
pub(crate) type Segments = Vec<String>;

/// A module: a file, or `mod name { .. }` inside one.
#[derive(Default)]
pub(crate) struct Module {
    /// The number of the file among the files of the crate.
    pub(crate) file: usize,
    /// Names that `use` brings in, and the paths that they stand for.
    pub(crate) imports: HashMap<String, Segments>,
    /// Modules whose names `use path::*` brings in.
    pub(crate) globs: Vec<Segments>,
    /// Names that are defined here.
    pub(crate) defined: HashSet<String>,
    /// Those of them that are passed on: `pub use`. They count where the module's own code says the name.
    pub(crate) passed_on: HashSet<String>,
    /// Words of code outside `use`.
    pub(crate) words: HashSet<String>,
    /// Paths of at least two words in code outside `use`.
    pub(crate) paths: Vec<Segments>,
    /// Whether there is more than declarations of modules and imports.
    pub(crate) has_code: bool,
}

/// The modules of a crate, by path from its root.
pub(crate) type Modules = HashMap<Segments, Module>;

/// Adds the module at `place` and those inside it.
pub(crate) fn parse(stream: TokenStream, file: usize, place: &[String], modules: &mut Modules) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut module = Module { file, ..Module::default() };
    items(&trees, place, &mut module, modules, true);
    modules.insert(place.to_vec(), module);
}

/// Reads trees at one level. `top` is false inside bodies, where other modules cannot name what is defined.
fn items(trees: &[TokenTree], place: &[String], module: &mut Module, modules: &mut Modules, top: bool) {
    let (mut at, mut public) = (0, false);
    while at < trees.len() {
        if let Some(group) = attribute(&trees[at..]) {
            let text = group.to_string().replace(' ', "");
            at += 1;
            while !matches!(&trees[at], TokenTree::Group(_)) {
                at += 1;
            }
            at += 1;
            if text.contains("cfg(test)") || text.contains("cfg(all(test") {
                at += item_length(&trees[at..]);
            }
            continue;
        }
        match &trees[at] {
            TokenTree::Ident(word) if word == "use" && !is_sign(trees.get(at + 1), '<') => {
                let end = trees[at..].iter().position(|tree| is_sign(Some(tree), ';'));
                let end = at + end.unwrap_or(trees.len() - at);
                imports(&trees[at + 1..end], &[], public, module);
                (at, public) = (end + 1, false);
            }
            TokenTree::Ident(word) if word == "mod" => {
                if let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) =
                    (trees.get(at + 1), trees.get(at + 2))
                {
                    let inner = [place, &[name.to_string()]].concat();
                    parse(body.stream(), module.file, &inner, modules);
                    module.has_code = true;
                }
                (at, public) = (at + 3, false);
            }
            TokenTree::Ident(word) if word == "pub" => {
                let restricted = matches!(trees.get(at + 1), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
                at += if restricted { 2 } else { 1 };
                public = true;
            }
            TokenTree::Ident(word) => {
                (module.has_code, public) = (true, false);
                if top && let Some(name) = defined(&word.to_string(), &trees[at + 1..]) {
                    module.defined.insert(name);
                }
                let (path, length) = path(&trees[at..]);
                let after = at.checked_sub(1).map(|before| &trees[before]);
                let inside =
                    is_sign(after, '.') || is_sign(after, ':') && is_sign(trees.get(at.wrapping_sub(2)), ':');
                module.words.extend(path.iter().cloned());
                if path.len() > 1 && !inside {
                    module.paths.push(path);
                }
                at += length;
            }
            TokenTree::Group(group) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                items(&inner, place, module, modules, false);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// The group of an attribute that starts here.
fn attribute(trees: &[TokenTree]) -> Option<TokenStream> {
    let bang = usize::from(is_sign(trees.get(1), '!'));
    match (is_sign(trees.first(), '#'), trees.get(1 + bang)) {
        (true, Some(TokenTree::Group(group))) if group.delimiter() == Delimiter::Bracket => {
            Some(group.stream())
        }
        _ => None,
    }
}

/// How many trees belong to the item, field or statement that starts here.
fn item_length(trees: &[TokenTree]) -> usize {
    let is_use = trees.iter().take(3).any(|tree| matches!(tree, TokenTree::Ident(word) if word == "use"));
    let ends = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace && !is_use,
        TokenTree::Punct(sign) => sign.as_char() == ';' || sign.as_char() == ',' && !is_use,
        _ => false,
    };
    trees.iter().position(ends).map_or(trees.len(), |end| end + 1)
}

/// The name that the item starting with `word` defines.
fn defined(word: &str, rest: &[TokenTree]) -> Option<String> {
    const BEFORE_NAMES: [&str; 8] = ["const", "enum", "fn", "static", "struct", "trait", "type", "union"];
    let name = match word {
        "macro_rules" => rest.get(1),
        word if BEFORE_NAMES.contains(&word) => rest.first(),
        _ => None,
    };
    name.filter(|tree| matches!(tree, TokenTree::Ident(_))).map(ToString::to_string)
}

/// The words joined by `::` that start here, and how many trees they are.
fn path(trees: &[TokenTree]) -> (Segments, usize) {
    let mut words = vec![trees[0].to_string()];
    let mut length = 1;
    while let [TokenTree::Punct(first), TokenTree::Punct(second), TokenTree::Ident(word), ..] =
        &trees[length..]
        && first.as_char() == ':'
        && second.as_char() == ':'
    {
        words.push(word.to_string());
        length += 3;
    }
    (words, length)
}

/// Adds what a tree of imports brings in: `a::{b, c::d as e, f::*}`.
fn imports(trees: &[TokenTree], prefix: &[String], public: bool, module: &mut Module) {
    for member in trees.split(|tree| is_sign(Some(tree), ',')) {
        let mut full = prefix.to_vec();
        let mut name = None;
        let mut words = member.iter();
        let mut listed = false;
        while let Some(tree) = words.next() {
            match tree {
                TokenTree::Ident(word) if word == "as" => name = words.next().map(ToString::to_string),
                TokenTree::Ident(word) if word == "self" && !full.is_empty() => {}
                TokenTree::Ident(word) => full.push(word.to_string()),
                TokenTree::Group(group) => {
                    imports(&group.stream().into_iter().collect::<Vec<_>>(), &full, public, module);
                    listed = true;
                }
                TokenTree::Punct(sign) if sign.as_char() == '*' => {
                    module.globs.push(full.clone());
                    listed = true;
                }
                _ => {}
            }
        }
        if let (false, Some(last)) = (listed, full.last()) {
            // What has no name is a trait whose methods are wanted; it is used all the same.
            let name = name.filter(|name| name != "_").unwrap_or_else(|| last.clone());
            if public {
                module.passed_on.insert(name.clone());
            }
            module.imports.insert(name, full);
        }
    }
}

fn is_sign(tree: Option<&TokenTree>, wanted: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(sign)) if sign.as_char() == wanted)
}
