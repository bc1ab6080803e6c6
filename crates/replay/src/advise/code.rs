//! What program text in huge pages would save: the pages of code that a program uses, against the entries of the instruction
//! TLB.

use serde_json::{Value, json};

use super::lines::labelled;
use super::ways::{Runtime, base};
use super::words::{count, size};
use crate::output::quoted;
use crate::replay::{CodeMapping, Trial};
use crate::tlb::{Access, Processor, Size};

/// The code of one process, on one processor.
pub(super) struct Code {
    used: crate::replay::Code,
    /// Entries for 4 KiB of the first and second level, and of the first for 2 MiB.
    first: u64,
    second: u64,
    large: u64,
    /// Whether CPUID hides them.
    assumed: bool,
}

impl Code {
    /// `None` if the recording shows no use of code.
    ///
    /// # Errors
    /// A trace that has changed meanwhile.
    pub(super) fn of(trial: &Trial) -> anyhow::Result<Option<Self>> {
        let processor = Processor::of_this_machine();
        let entries = |level, size| u64::from(processor.entries(level, Access::Fetch, size));
        Ok(trial.code()?.map(|used| Self {
            used,
            first: entries(1, Size::Small),
            second: entries(2, Size::Small),
            large: entries(1, Size::Large),
            assumed: processor.leaf.is_none(),
        }))
    }

    fn sum(&self, of: fn(&CodeMapping) -> u64) -> u64 {
        self.used.mappings.iter().map(of).sum()
    }

    /// Entries that all used pages take: of 4 KiB; with text in 2 MiB, those of 2 MiB and those of 4 KiB.
    fn needs(&self) -> (u64, u64, u64) {
        (self.sum(|code| code.pages), self.sum(|code| code.blocks), self.sum(|code| code.rest))
    }

    /// Whether 4 KiB pages overflow the first level, and 2 MiB halve what they need at least.
    fn pays(&self) -> bool {
        let (pages, blocks, rest) = self.needs();
        pages > self.first && 2 * (blocks + rest) <= pages
    }
}

/// For readers.
pub(super) fn text(code: &Code, trial: &Trial) -> String {
    let (pages, blocks, rest) = code.needs();
    let most = code.used.mappings.iter().take(2).map(|mapping| {
        format!("{} of {} in {}", size(mapping.pages << 12), size(mapping.bytes), name(mapping, trial))
    });
    let most: Vec<String> = most.collect();
    let program =
        program(code, trial).map_or_else(|| "the program".to_owned(), |name| quoted(name).to_string());
    let assumed = if code.assumed { " (assumed)" } else { "" };
    let mut said = format!(
        "{program} uses about {} pages of code of 4K: {}. The instruction TLB has {} entries{assumed}",
        count(pages),
        most.join(", "),
        count(code.first)
    );
    if code.second > 0 {
        said += &format!(", and {} on the second level", count(code.second));
    }
    let mut text = labelled("code:", &said);
    let huge = format!(
        "text in huge pages needs {} entries of 2M (of {}) and {} of 4K",
        count(blocks),
        count(code.large),
        count(rest)
    );
    if code.pays() {
        text += &labelled("", &format!("{huge}; what that saves tells --instrumented alone"));
        text += &labelled("how:", Runtime::of(&trial.files()).huge_text());
    } else if pages <= code.first {
        text += &labelled("", "they fit into its first level: huge pages for text save nothing");
    } else {
        text += &labelled("", &format!("{huge}: too little lies in mappings of 2 MiB to pay"));
    }
    text
}

fn program<'t>(code: &Code, trial: &'t Trial) -> Option<&'t str> {
    trial.names().get(code.used.program?.0 as usize).map(String::as_str)
}

fn name(mapping: &CodeMapping, trial: &Trial) -> String {
    match mapping.path.and_then(|path| trial.names().get(path.0 as usize)) {
        Some(path) => quoted(base(path)).to_string(),
        None => "what is compiled at run time".to_owned(),
    }
}

/// For programs.
pub(super) fn json(code: &Code, trial: &Trial) -> Value {
    let mapping = |mapping: &CodeMapping| {
        json!({
            "file": mapping.path.and_then(|path| trial.names().get(path.0 as usize)),
            "bytes": mapping.bytes,
            "pages": mapping.pages,
            "entries_2m": mapping.blocks,
            "entries_4k": mapping.rest,
        })
    };
    let (pages, blocks, rest) = code.needs();
    json!({
        "pid": code.used.pid,
        "program": program(code, trial),
        "pages": pages,
        "entries_2m": blocks,
        "entries_4k": rest,
        "tlb_first_4k": code.first,
        "tlb_second_4k": code.second,
        "tlb_first_2m": code.large,
        "tlb_assumed": code.assumed,
        "pays": code.pays(),
        "how": code.pays().then(|| Runtime::of(&trial.files()).huge_text()),
        "mappings": code.used.mappings.iter().map(mapping).collect::<Vec<_>>(),
    })
}
