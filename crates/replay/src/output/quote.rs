//! Escapes names and lines from elsewhere: a hostile trace, the command line, the machine.

use std::borrow::Cow;
use std::ffi::OsStr;

use os_display::{Quotable, Quoted};

/// A name, argument or path for the terminal: unchanged if it is harmless, else quoted for a shell with
/// escapes for unprintable characters (`$'a\x1Bb'`).
pub fn quoted<T: AsRef<OsStr> + ?Sized>(text: &T) -> Quoted<'_> {
    text.as_ref().maybe_quote()
}

/// A line that may contain foreign names: characters that move the cursor, end the line or change the writing
/// direction are escaped (`
/// `, `\u{1b}`).
pub fn line(text: &str) -> Cow<'_, str> {
    if !text.contains(steers) {
        return text.into();
    }
    let escaped = |letter: char| match steers(letter) {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escaped).collect::<String>().into()
}

/// Control characters (C0, C1, delete), line separators, and the marks that turn the direction of writing (Unicode
/// Standard Annex 9).
fn steers(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_names_stay_as_they_are() {
        for name in ["true", "/usr/bin/python3.11", "größe", "a-b_c+d"] {
            assert_eq!(quoted(name).to_string(), name);
            assert_eq!(line(name), name);
        }
    }

    #[test]
    fn nothing_that_steers_a_terminal_remains() {
        for letter in ['\u{1b}', '\n', '\r', '\u{7f}', '\u{9b}', '\u{2028}', '\u{202e}', '\u{2067}'] {
            let name = format!("a{letter}b");
            for shown in [quoted(&name).to_string(), line(&name).into_owned()] {
                assert!(!shown.contains(letter), "{shown:?}");
            }
        }
        assert_eq!(quoted("a\u{1b}[2Jb").to_string(), "$'a\\x1B[2Jb'");
        assert_eq!(line("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
