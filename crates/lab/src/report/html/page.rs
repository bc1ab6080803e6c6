//! The frame of the page.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::output::quoted;

const STYLE: &str = include_str!("style.css");

/// What one file says: the first screen, and the details below it.
pub(super) struct Section {
    pub title: String,
    pub body: Markup,
}

/// A command as a shell would take it.
pub(super) fn command(words: &[String]) -> String {
    words.iter().map(|word| quoted(word).to_string()).collect::<Vec<_>>().join(" ")
}

pub(super) const MIB: f64 = (1 << 20) as f64;

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB)
}

/// The whole page.
pub(super) fn text(sections: &[Section]) -> String {
    let title = sections.first().map_or("quire", |section| section.title.as_str());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // An icon of its own, since a browser would look for one beside the file.
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                @for section in sections {
                    section {
                        h1 { (section.title) }
                        (section.body)
                    }
                }
                footer { "Written by quire " (env!("CARGO_PKG_VERSION")) "." }
            }
        }
    };
    page.into_string()
}
