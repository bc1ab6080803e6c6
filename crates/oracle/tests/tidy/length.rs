//! Files and functions are short.

use proc_macro2::Delimiter;

use crate::source::{Source, Token};

const FILE_LINES: usize = 450;
const FUNCTION_LINES: usize = 70;

/// Files that are longer for now, and how long they may be. A file that has become short leaves the list.
pub(crate) const LONGER: &[(&str, usize)] = &[];

pub(crate) fn check(files: &[Source], longer: &[(&str, usize)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        let lines = file.text.lines().count();
        let allowed = longer.iter().find(|(path, _)| *path == file.path).map(|&(_, lines)| lines);
        if lines > allowed.unwrap_or(FILE_LINES) {
            complaints.push(format!("{}: {lines} lines", file.path));
        } else if allowed.is_some() && lines <= FILE_LINES {
            complaints.push(format!("{}: short again, so it leaves the list of longer files", file.path));
        }
        for (name, lines) in functions(&file.tokens()) {
            if lines > FUNCTION_LINES {
                complaints.push(format!("{}: `{name}` has {lines} lines", file.path));
            }
        }
    }
    complaints
}

/// Every function with a body, and how many lines it has from its `fn` to its last brace.
fn functions(tokens: &[Token]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let [Token::Word(word, start), Token::Word(name, _)] = pair else { continue };
        if word != "fn" {
            continue;
        }
        let mut depth = 0;
        for token in &tokens[at + 2..] {
            match token {
                Token::Open(Delimiter::Brace, end) if depth == 0 => {
                    found.push((name.clone(), end.end().line - start.start().line + 1));
                    break;
                }
                Token::Sign(';') if depth == 0 => break,
                Token::Open(..) => depth += 1,
                Token::Close if depth == 0 => break,
                Token::Close => depth -= 1,
                _ => {}
            }
        }
    }
    found
}

#[test]
fn long_files_and_functions_are_found() {
    let body = |lines: usize| {
        format!(
            "impl A {{\n    fn f<T>(a: [u8; 2]) -> B\n    {{\n{}    }}\n}}\n",
            "        g();\n".repeat(lines - 3)
        )
    };
    let of = |text: String| check(&[Source::new("a.rs", &text)], &[]);
    assert_eq!(of(body(70)), [""; 0]);
    assert_eq!(of(body(71)), ["a.rs: `f` has 71 lines"]);
    assert_eq!(of(format!("trait T {{ fn f(); }}\nconst A: fn() = g;\n{}", body(70))), [""; 0]);
    assert_eq!(of("//\n".repeat(450)), [""; 0]);
    assert_eq!(of("//\n".repeat(451)), ["a.rs: 451 lines"]);
    let listed = |lines: usize| check(&[Source::new("a.rs", &"//\n".repeat(lines))], &[("a.rs", 460)]);
    assert_eq!(listed(460), [""; 0]);
    assert_eq!(listed(461), ["a.rs: 461 lines"]);
    assert_eq!(listed(450), ["a.rs: short again, so it leaves the list of longer files"]);
}
