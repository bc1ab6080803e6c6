//! The finder's context in a file.

use syn::spanned::Spanned;
use syn::{Attribute, Expr, Pat, Stmt};

use super::{Class, Found, Operator, Place};

/// Functions that only check or show.
const CHECKS: [&str; 5] = ["validate", "verify", "check_", "debug_", "fmt"];
/// Code that only counts, or only makes things faster.
const UNSEEN: [&str; 9] = [
    "stats",
    "Stat::",
    "expect_reads",
    "expect_changes",
    "spin_loop",
    "prefetch",
    "reschedule",
    "relax(",
    "debug_assert",
];

/// Walks a file and collects its places.
pub(super) struct Finder<'t> {
    text: &'t str,
    functions: Vec<String>,
    /// Enclosing constant contexts.
    pub(super) constant: usize,
    /// Enclosing error paths.
    pub(super) on_error: usize,
    pub(super) found: Found,
}

impl<'t> Finder<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, functions: Vec::new(), constant: 0, on_error: 0, found: Found::default() }
    }

    pub(super) fn text(&self, of: &impl Spanned) -> &'t str {
        &self.text[of.span().byte_range()]
    }

    /// Adds a place.
    pub(super) fn push(&mut self, at: &impl Spanned, operator: Operator, mutated: String) {
        let span = at.span();
        let original = self.text(at);
        if self.functions.iter().any(|name| CHECKS.iter().any(|check| name.starts_with(check))) {
            return;
        }
        if is_unseen(original) {
            self.found.unseen += 1;
        } else if self.constant > 0 {
            self.found.constant += 1;
        } else if let Some(function) = self.functions.last() {
            self.found.places.push(Place {
                range: span.byte_range(),
                line: span.start().line,
                function: function.clone(),
                operator,
                class: Class::of(operator, original, self.on_error > 0),
                mutated,
            });
        }
    }

    /// Visits a function's body.
    pub(super) fn within(&mut self, name: String, constant: bool, visit: impl FnOnce(&mut Self)) {
        self.functions.push(name);
        let around = (self.constant, self.on_error);
        (self.constant, self.on_error) = (usize::from(constant), 0);
        visit(self);
        (self.constant, self.on_error) = around;
        self.functions.pop();
    }

    pub(super) fn as_error(&mut self, on_error: bool, visit: impl FnOnce(&mut Self)) {
        self.on_error += usize::from(on_error);
        visit(self);
        self.on_error -= usize::from(on_error);
    }

    pub(super) fn as_constant(&mut self, visit: impl FnOnce(&mut Self)) {
        self.constant += 1;
        visit(self);
        self.constant -= 1;
    }
}

/// Whether the text has no effect that users of the library see.
pub(super) fn is_unseen(text: &str) -> bool {
    UNSEEN.iter().any(|word| text.contains(word))
}

/// Whether the compiler takes it only for tests, or for builds with assertions.
pub(super) fn is_conditional(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") || attribute.path().is_ident("test"))
}

/// Whether a pattern is that of a failure.
pub(super) fn is_failure(text: &str) -> bool {
    text.starts_with("Err(") || text.starts_with("Err ")
}

/// Whether a condition tests for a failure.
pub(super) fn asks_for_failure(text: &str) -> bool {
    text.contains(".is_err()") || text.contains("let Err(")
}

/// Whether the block leaves with an error.
pub(super) fn ends_in_error(last: Option<&Stmt>) -> bool {
    let is_err = |expr: &Expr| matches!(expr, Expr::Call(call) if matches!(&*call.func, Expr::Path(path) if path.path.is_ident("Err")));
    match last {
        Some(Stmt::Expr(Expr::Return(leaving), _)) => leaving.expr.as_deref().is_some_and(is_err),
        Some(Stmt::Expr(expr, None)) => is_err(expr),
        _ => false,
    }
}

/// Whether a pattern binds a name, so that its arm can use it.
pub(super) fn binds(pattern: &Pat) -> bool {
    struct Names(bool);
    impl<'a> syn::visit::Visit<'a> for Names {
        fn visit_pat_ident(&mut self, name: &'a syn::PatIdent) {
            // A single word may be a constant, too.
            self.0 |= name.ident.to_string().starts_with(|first: char| first.is_lowercase());
        }
        fn visit_pat_guard(&mut self, _: &'a syn::PatGuard) {
            self.0 = true;
        }
    }
    let mut names = Names(false);
    syn::visit::Visit::visit_pat(&mut names, pattern);
    names.0
}
