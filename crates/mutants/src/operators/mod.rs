//! The places of a source file for deliberate bugs, and the bugs.
//!
//! A place is a range of the text and its replacement. There is none where the switch cannot be compiled
//! (constants, `const fn`), where users see no effect of the code (statistics, hints to the processor), and
//! in code that only checks other code.

mod class;
mod conditions;
mod context;
#[cfg(test)]
mod tests;
mod values;
mod visit;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use syn::visit::Visit;

pub(crate) use class::Class;

/// The ways to make correct code wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operator {
    /// `<` for `<=`, `>` for `>=`, and the other way round.
    Boundary,
    /// `==` for `!=`, and the other way round.
    Equality,
    /// `&&` for `||`, and the other way round.
    Logic,
    /// One side of `&&`, `||`, `|` or `&` is removed.
    Term,
    /// A condition never holds.
    Never,
    /// A condition always holds.
    Always,
    /// `!` is removed.
    Negation,
    /// `+ 1` or `- 1` is removed.
    OffByOne,
    /// A number is one larger.
    Literal,
    /// A call in a chain is removed: `min`, `max`, `union`, `without`, `inspect_err` and the like.
    Link,
    /// A statement is removed: a call, or a change of a value.
    Statement,
    /// An arm of a `match` does the work of its neighbour.
    Arm,
}

/// A place, and the bug there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The bytes of the file.
    pub(crate) range: Range<usize>,
    /// Line number, from 1.
    pub(crate) line: usize,
    /// The innermost function around it.
    pub(crate) function: String,
    pub(crate) operator: Operator,
    pub(crate) class: Class,
    /// The replacement; empty for a removed statement.
    pub(crate) mutated: String,
}

/// The places of a file.
#[derive(Default, Debug)]
pub(crate) struct Found {
    pub(crate) places: Vec<Place>,
    /// Places where the switch cannot be compiled.
    pub(crate) constant: usize,
    /// Places in statistics and hints.
    pub(crate) unseen: usize,
}

/// Every place of a file.
///
/// # Errors
/// The text is not Rust.
pub(crate) fn find(text: &str) -> syn::Result<Found> {
    let file = syn::parse_file(text)?;
    let mut finder = context::Finder::new(text);
    finder.visit_file(&file);
    Ok(finder.found)
}
