//! Conditions that always or never hold, and chains of `&&`.

use syn::{BinOp, Expr};

use super::Operator;
use super::context::Finder;

impl Finder<'_> {
    /// Makes a condition never hold, or with `always` always. One that binds names is left alone.
    pub(super) fn condition(&mut self, condition: &Expr, always: bool) {
        if has_let(condition) {
            return;
        }
        self.push(condition, Operator::Never, "false".into());
        if always {
            self.push(condition, Operator::Always, "true".into());
        }
    }
}

/// Whether a chain of conditions binds names.
pub(super) fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            has_let(&binary.left) || has_let(&binary.right)
        }
        _ => false,
    }
}
