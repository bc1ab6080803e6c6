//! Operators, numbers and links of chains.

use syn::{BinOp, Expr, ExprBinary, ExprLit, ExprMethodCall, ExprUnary, Lit, UnOp};

use super::Operator;
use super::conditions::has_let;
use super::context::Finder;

/// Methods whose removal keeps a chain's type.
const LINKS: [&str; 13] = [
    "min",
    "max",
    "union",
    "without",
    "with",
    "intersection",
    "inspect_err",
    "inspect",
    "filter",
    "align_up",
    "align_down",
    "take",
    "rev",
];

/// Whether the operator changes its left side.
pub(super) fn is_change(op: BinOp) -> bool {
    use BinOp::*;
    matches!(op, AddAssign(_) | SubAssign(_) | BitOrAssign(_) | BitAndAssign(_) | BitXorAssign(_))
}

/// The replacing operator, and its kind.
fn instead(op: BinOp) -> Option<(&'static str, Operator)> {
    Some(match op {
        BinOp::Lt(_) => ("<=", Operator::Boundary),
        BinOp::Le(_) => ("<", Operator::Boundary),
        BinOp::Gt(_) => (">=", Operator::Boundary),
        BinOp::Ge(_) => (">", Operator::Boundary),
        BinOp::Eq(_) => ("!=", Operator::Equality),
        BinOp::Ne(_) => ("==", Operator::Equality),
        BinOp::And(_) => ("||", Operator::Logic),
        BinOp::Or(_) => ("&&", Operator::Logic),
        _ => return None,
    })
}

fn is_one(expr: &Expr) -> bool {
    matches!(expr, Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) if number.base10_digits() == "1")
}

impl Finder<'_> {
    pub(super) fn binary(&mut self, node: &ExprBinary) {
        if has_let(&node.left) || has_let(&node.right) {
            return;
        }
        let (left, right) = (self.text(&node.left), self.text(&node.right));
        if let Some((other, operator)) = instead(node.op) {
            self.push(node, operator, format!("{left} {other} {right}"));
        }
        match node.op {
            BinOp::And(_) | BinOp::Or(_) | BinOp::BitOr(_) | BinOp::BitAnd(_) => {
                self.push(node, Operator::Term, left.into());
                self.push(node, Operator::Term, right.into());
            }
            BinOp::Add(_) | BinOp::Sub(_) if is_one(&node.right) => {
                self.push(node, Operator::OffByOne, left.into());
            }
            BinOp::Div(_) | BinOp::Shr(_) => self.push(node, Operator::Literal, left.into()),
            _ => {}
        }
    }

    pub(super) fn unary(&mut self, node: &ExprUnary) {
        if matches!(node.op, UnOp::Not(_)) {
            let mutated = self.text(&node.expr).to_string();
            self.push(node, Operator::Negation, mutated);
        }
    }

    pub(super) fn literal(&mut self, node: &ExprLit) {
        if let Lit::Int(number) = &node.lit
            && let Ok(value) = number.base10_parse::<u64>()
        {
            let mutated = format!("{}{}", value.saturating_add(1), number.suffix());
            self.push(node, Operator::Literal, mutated);
        }
    }

    pub(super) fn link(&mut self, node: &ExprMethodCall) {
        if LINKS.iter().any(|name| node.method == name) {
            let mutated = self.text(&node.receiver).to_string();
            self.push(node, Operator::Link, mutated);
        }
    }
}
