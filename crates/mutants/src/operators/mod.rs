//! The places of a source file where a deliberate bug can stand, and which bug.
//!
//! Every place is a stretch of the text and what stands there instead. Where the switch cannot be compiled (constants,
//! `const fn`), where nothing that users see depends on the code (statistics, hints to the processor), and where code
//! only checks other code, there is none.

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

/// How correct code is made wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operator {
    /// `<` for `<=`, `>` for `>=`, and the other way round.
    Boundary,
    /// `==` for `!=`, and the other way round.
    Equality,
    /// `&&` for `||`, and the other way round.
    Logic,
    /// One side of `&&`, `||`, `|` or `&` is gone.
    Term,
    /// A condition never holds.
    Never,
    /// A condition always holds.
    Always,
    /// `!` is gone.
    Negation,
    /// `+ 1` or `- 1` is gone.
    OffByOne,
    /// A number is one larger.
    Literal,
    /// A call in a chain is gone: `min`, `max`, `union`, `without`, `inspect_err` and the like.
    Link,
    /// A statement is gone: a call, or a change of a value.
    Statement,
    /// An arm of a `match` does what its neighbour does.
    Arm,
}

/// A place, and the bug there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The bytes of the file.
    pub(crate) range: Range<usize>,
    /// From 1.
    pub(crate) line: usize,
    /// The innermost function around it.
    pub(crate) function: String,
    pub(crate) operator: Operator,
    pub(crate) class: Class,
    /// What stands there instead; nothing for a statement that is gone.
    pub(crate) mutated: String,
}

/// What a file offers.
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
