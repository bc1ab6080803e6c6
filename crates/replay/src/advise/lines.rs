//! Lines with a label, within 80 columns.

use crate::output::Width;

/// The most columns.
pub(super) const COLUMNS: usize = 80;
/// Columns of a label.
const LABEL: usize = 10;

/// A label and its text, wrapped; no line ends between a number and its unit, or within a name.
pub(super) fn labelled(label: &str, text: &str) -> String {
    const UNITS: [&str; 7] = ["%", "KiB", "MiB", "ns", "us", "ms", "s"];
    const JOINED: &str = "\u{a0}";
    let width = Width::of_output().columns.map_or(COLUMNS, |columns| columns.min(COLUMNS));
    let (first, further) = (format!("{label:<0$} ", LABEL - 1), " ".repeat(LABEL));
    let options = textwrap::Options::new(width)
        .initial_indent(&first)
        .subsequent_indent(&further)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let is_unit = |word: &str| UNITS.contains(&word.trim_end_matches([',', ';', ')', '.']));
    let joined = text.split(' ').fold(String::new(), |text, word| match is_unit(word) {
        _ if text.is_empty() => word.to_owned(),
        true => text + JOINED + word,
        false => text + " " + word,
    });
    textwrap::fill(&joined, options).replace(JOINED, " ") + "\n"
}

/// A label and commands, each on a line of its own, unbroken.
pub(super) fn listed<'a>(label: &str, commands: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<String> = commands.map(|command| format!("  {command}\n")).collect();
    if lines.is_empty() { String::new() } else { format!("{label}\n{}", lines.concat()) }
}
