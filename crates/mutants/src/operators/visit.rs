//! The walk through a file's syntax.

use syn::visit::{self, Visit};
use syn::{
    Block, Expr, ExprClosure, ExprForLoop, ExprIf, ExprMatch, ExprMethodCall, ExprRepeat, ExprWhile,
    ImplItemConst, ImplItemFn, ItemConst, ItemFn, ItemImpl, ItemMod, ItemStatic, Local, Pat, ReturnType,
    Stmt, TraitItemFn, Type,
};

use super::Operator;
use super::context::{Finder, asks_for_failure, binds, ends_in_error, is_conditional, is_failure, is_unseen};

/// Traits whose code formats values.
const SHOWN: [&str; 2] = ["Debug", "Display"];
/// Arguments of these run after a failure.
const AFTER_FAILURE: [&str; 4] = ["inspect_err", "map_err", "or_else", "unwrap_or_else"];

impl Finder<'_> {
    fn function(&mut self, name: String, constant: bool, output: &ReturnType, block: &Block) {
        self.within(name, constant, |finder| {
            if matches!(output, ReturnType::Default) {
                finder.last_statement(block);
            }
            finder.visit_block(block);
        });
    }

    /// The last expression of a block with an unused value.
    fn last_statement(&mut self, block: &Block) {
        if let Some(Stmt::Expr(expr, None)) = block.stmts.last()
            && is_step(expr)
        {
            self.push(expr, Operator::Statement, String::new());
        }
    }

    fn arms(&mut self, of: &ExprMatch) {
        for (at, arm) in of.arms.iter().enumerate() {
            let other = if at + 1 < of.arms.len() { at + 1 } else { at.saturating_sub(1) };
            let other = &of.arms[other];
            let differ = self.text(&arm.body) != self.text(&other.body);
            if differ && !binds(&arm.pat) && !binds(&other.pat) {
                let mutated = self.text(&other.body).to_string();
                self.push(&arm.body, Operator::Arm, mutated);
            }
        }
    }
}

/// Whether a statement has an effect that may be forgotten.
fn is_step(expr: &Expr) -> bool {
    match expr {
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) => true,
        Expr::Binary(binary) => super::values::is_change(binary.op),
        Expr::Try(tried) => is_step(&tried.expr),
        _ => false,
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_mod(&mut self, node: &'a ItemMod) {
        if !is_conditional(&node.attrs) {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_item_impl(&mut self, node: &'a ItemImpl) {
        let shows = node.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        let shows = shows.is_some_and(|name| SHOWN.iter().any(|shown| name.ident == shown));
        if !shows && !is_conditional(&node.attrs) {
            visit::visit_item_impl(self, node);
        }
    }

    fn visit_item_fn(&mut self, node: &'a ItemFn) {
        if !is_conditional(&node.attrs) {
            let constant = node.sig.constness.is_some();
            self.function(node.sig.ident.to_string(), constant, &node.sig.output, &node.block);
        }
    }

    fn visit_impl_item_fn(&mut self, node: &'a ImplItemFn) {
        if !is_conditional(&node.attrs) {
            let constant = node.sig.constness.is_some();
            self.function(node.sig.ident.to_string(), constant, &node.sig.output, &node.block);
        }
    }

    fn visit_trait_item_fn(&mut self, node: &'a TraitItemFn) {
        if let Some(block) = &node.default {
            self.function(node.sig.ident.to_string(), false, &node.sig.output, block);
        }
    }

    fn visit_item_const(&mut self, node: &'a ItemConst) {
        self.as_constant(|finder| visit::visit_item_const(finder, node));
    }

    fn visit_item_static(&mut self, node: &'a ItemStatic) {
        self.as_constant(|finder| visit::visit_item_static(finder, node));
    }

    fn visit_impl_item_const(&mut self, node: &'a ImplItemConst) {
        self.as_constant(|finder| visit::visit_impl_item_const(finder, node));
    }

    fn visit_type(&mut self, node: &'a Type) {
        self.as_constant(|finder| visit::visit_type(finder, node));
    }

    fn visit_generic_argument(&mut self, node: &'a syn::GenericArgument) {
        self.as_constant(|finder| visit::visit_generic_argument(finder, node));
    }

    fn visit_expr_const(&mut self, node: &'a syn::ExprConst) {
        self.as_constant(|finder| visit::visit_expr_const(finder, node));
    }

    fn visit_expr_repeat(&mut self, node: &'a ExprRepeat) {
        self.visit_expr(&node.expr);
    }

    fn visit_stmt(&mut self, node: &'a Stmt) {
        if let Stmt::Expr(expr, Some(_)) = node
            && is_step(expr)
        {
            self.push(node, Operator::Statement, String::new());
            if is_unseen(self.text(node)) {
                return;
            }
        }
        visit::visit_stmt(self, node);
    }

    fn visit_pat(&mut self, node: &'a Pat) {
        // Literals and ranges in patterns are constants; a guard is an expression.
        if let Pat::Guard(guard) = node {
            self.visit_expr(&guard.guard);
        }
    }

    fn visit_local(&mut self, node: &'a Local) {
        let Some(init) = &node.init else { return };
        self.visit_expr(&init.expr);
        if let Some((_, other)) = &init.diverge {
            self.as_error(true, |finder| finder.visit_expr(other));
        }
    }

    fn visit_expr_if(&mut self, node: &'a ExprIf) {
        let condition = self.text(&node.cond);
        if condition.contains("cfg!") {
            return;
        }
        self.condition(&node.cond, true);
        self.visit_expr(&node.cond);
        if node.else_branch.is_none() {
            self.last_statement(&node.then_branch);
        }
        let failed = asks_for_failure(condition) || ends_in_error(node.then_branch.stmts.last());
        self.as_error(failed, |finder| finder.visit_block(&node.then_branch));
        if let Some((_, other)) = &node.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_while(&mut self, node: &'a ExprWhile) {
        self.condition(&node.cond, false);
        self.last_statement(&node.body);
        visit::visit_expr_while(self, node);
    }

    fn visit_expr_for_loop(&mut self, node: &'a ExprForLoop) {
        self.last_statement(&node.body);
        visit::visit_expr_for_loop(self, node);
    }

    fn visit_expr_match(&mut self, node: &'a ExprMatch) {
        self.arms(node);
        self.visit_expr(&node.expr);
        for arm in &node.arms {
            self.visit_pat(&arm.pat);
            let failed = is_failure(self.text(&arm.pat));
            self.as_error(failed, |finder| finder.visit_expr(&arm.body));
        }
    }

    fn visit_expr_method_call(&mut self, node: &'a ExprMethodCall) {
        self.link(node);
        self.visit_expr(&node.receiver);
        let failed = AFTER_FAILURE.iter().any(|name| node.method == name);
        self.as_error(failed, |finder| node.args.iter().for_each(|argument| finder.visit_expr(argument)));
    }

    fn visit_expr_closure(&mut self, node: &'a ExprClosure) {
        self.visit_expr(&node.body);
    }

    fn visit_expr_binary(&mut self, node: &'a syn::ExprBinary) {
        self.binary(node);
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'a syn::ExprUnary) {
        self.unary(node);
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_lit(&mut self, node: &'a syn::ExprLit) {
        self.literal(node);
    }
}
