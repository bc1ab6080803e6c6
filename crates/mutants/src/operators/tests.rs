//! Each operator on a line of source.

use super::{Class, Operator, find};

/// The replacements in the function, with their operators.
fn changes(body: &str) -> Vec<(Operator, String, String)> {
    let text = format!("fn f() -> u64 {{ {body} }}");
    let places = find(&text).expect("Rust").places;
    places.into_iter().map(|place| (place.operator, text[place.range].to_string(), place.mutated)).collect()
}

/// Checks that exactly these changes are possible with the operator.
fn expect(body: &str, operator: Operator, wanted: &[(&str, &str)]) {
    let found = changes(body);
    let found: Vec<_> = found.iter().filter(|(of, ..)| *of == operator).collect();
    let found: Vec<_> = found.iter().map(|(_, from, to)| (from.as_str(), to.as_str())).collect();
    assert_eq!(found, wanted, "{body}");
}

#[test]
fn comparisons_move_by_one_and_turn_round() {
    expect("a < b", Operator::Boundary, &[("a < b", "a <= b")]);
    expect("a.x() >= 255", Operator::Boundary, &[("a.x() >= 255", "a.x() > 255")]);
    expect("a == b", Operator::Equality, &[("a == b", "a != b")]);
    expect("a != b", Operator::Equality, &[("a != b", "a == b")]);
}

#[test]
fn chains_of_conditions_lose_a_term_or_change_their_sense() {
    expect("a && b", Operator::Logic, &[("a && b", "a || b")]);
    expect("a && b", Operator::Term, &[("a && b", "a"), ("a && b", "b")]);
    expect("A | B", Operator::Term, &[("A | B", "A"), ("A | B", "B")]);
    expect("if let Some(x) = a && x < 3 { }", Operator::Term, &[]);
    expect("if let Some(x) = a && x < 3 { }", Operator::Never, &[]);
    expect("if let Some(x) = a && x < 3 { }", Operator::Boundary, &[("x < 3", "x <= 3")]);
}

#[test]
fn conditions_are_decided() {
    expect("if a { }", Operator::Never, &[("a", "false")]);
    expect("if a { }", Operator::Always, &[("a", "true")]);
    expect("while a { }", Operator::Never, &[("a", "false")]);
    expect("while a { }", Operator::Always, &[]);
    expect("if cfg!(debug_assertions) { a < b }", Operator::Boundary, &[]);
    expect("!a", Operator::Negation, &[("!a", "a")]);
    expect("match x { y if y < 3 => 1, _ => 1 }", Operator::Boundary, &[("y < 3", "y <= 3")]);
}

#[test]
fn numbers_are_off_by_one() {
    expect("a + 1", Operator::OffByOne, &[("a + 1", "a")]);
    expect("a - 2", Operator::OffByOne, &[]);
    expect("g(7u8)", Operator::Literal, &[("7u8", "8u8")]);
    expect("match x { 7 => a, _ => b }", Operator::Literal, &[]);
    expect("let x: [u8; 4] = y; x", Operator::Literal, &[]);
}

#[test]
fn links_of_chains_go() {
    expect("a.union(b)", Operator::Link, &[("a.union(b)", "a")]);
    expect("g().inspect_err(|_| h())", Operator::Link, &[("g().inspect_err(|_| h())", "g()")]);
    expect("a.get(b)", Operator::Link, &[]);
}

#[test]
fn statements_go() {
    expect("owed.flush(x); 1", Operator::Statement, &[("owed.flush(x);", "")]);
    expect("charge()?; 1", Operator::Statement, &[("charge()?;", "")]);
    expect("n += 2; 1", Operator::Statement, &[("n += 2;", "")]);
    expect("if a { g() } 1", Operator::Statement, &[("g()", "")]);
    expect("let a = g(); return a;", Operator::Statement, &[]);
    expect("self.stats.add(1); assert!(g()); 1", Operator::Statement, &[]);
}

#[test]
fn arms_do_what_their_neighbours_do() {
    expect("match x { A => 1, B => 2 }", Operator::Arm, &[("1", "2"), ("2", "1")]);
    expect("match x { Some(y) => y, None => 2 }", Operator::Arm, &[]);
    expect("match x { A => 1, B => 1 }", Operator::Arm, &[]);
}

#[test]
fn what_cannot_be_switched_or_is_not_seen_is_counted() {
    let found =
        find("const A: u64 = 1 + 2; const fn f() -> bool { a < b } fn g() { self.stats.add(1); x(); }");
    let found = found.expect("Rust");
    assert_eq!(found.places.len(), 1, "{:?}", found.places);
    assert_eq!((found.constant, found.unseen), (3, 1), "two numbers and a comparison; a statistic");
}

#[test]
fn checks_tests_and_names_of_values_are_left_alone() {
    let text = "#[cfg(test)] mod tests { fn f() { g(); } } fn validate() { g(); } \
        impl fmt::Debug for A { fn fmt() { g(); } } #[test] fn t() { g(); }";
    assert_eq!(find(text).expect("Rust").places.len(), 0);
}

#[test]
fn what_runs_after_a_failure_is_known() {
    let class = |body: &str| {
        let places = find(&format!("fn f() {{ {body} }}")).expect("Rust").places;
        let found = places.into_iter().find(|place| place.operator == Operator::Statement);
        found.expect("a statement").class
    };
    assert_eq!(class("if a.is_err() { undo(); }"), Class::ErrorPath);
    assert_eq!(class("match a { Err(_) => { undo(); } Ok(_) => {} }"), Class::ErrorPath);
    assert_eq!(class("let Some(a) = b else { undo(); return; };"), Class::ErrorPath);
    assert_eq!(class("if a { undo(); return Err(x); }"), Class::ErrorPath);
    assert_eq!(class("let x = g.map_err(|e| { undo(); e });"), Class::ErrorPath);
    assert_eq!(class("owed.flush(pages);"), Class::Flush);
    assert_eq!(class("charge(1);"), Class::Counter);
    assert_eq!(class("go();"), Class::Step);
}
