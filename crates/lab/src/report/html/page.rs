//! The frame of the page.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("style.css");

/// What one file says: the first screen, and the details below it.
pub(super) struct Section {
    pub title: String,
    pub body: Markup,
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
