//! Above `arch`, no code and no name of a file speaks of one processor. Comments may, where its manual is the source.

use crate::source::{Source, Token};

/// Where the words are at home.
const HOME: &str = "crates/quire/src/arch/";
/// Parts of names, in small letters.
const WORDS: [&str; 38] = [
    "amd",
    "amd64",
    "avx",
    "avx2",
    "avx512",
    "clflush",
    "clwb",
    "clzero",
    "cpuid",
    "cr0",
    "cr2",
    "cr3",
    "cr4",
    "ept",
    "erms",
    "intel",
    "invlpg",
    "invpcid",
    "la57",
    "mfence",
    "movdir64b",
    "movnti",
    "movsb",
    "msr",
    "npt",
    "nt16",
    "nt32",
    "nt64",
    "nx",
    "pcid",
    "rdtsc",
    "sfence",
    "smap",
    "sse",
    "sse2",
    "stosb",
    "tsc",
    "x86",
];

pub(crate) fn check(files: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| !file.path.starts_with(HOME) && !file.is_test()) {
        let name = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        if let Some(word) = foreign(name) {
            complaints.push(format!("{}: `{word}` is a word of one processor", file.path));
        }
        for token in file.tokens() {
            if let Token::Word(name, span) = token
                && let Some(word) = foreign(&name)
            {
                complaints.push(format!(
                    "{}:{}: `{name}`: `{word}` is a word of one processor",
                    file.path,
                    span.start().line
                ));
            }
        }
    }
    complaints
}

/// The first part of a name that is such a word.
fn foreign(name: &str) -> Option<&'static str> {
    if name == "target_arch" || name == "NO_EXECUTE" {
        return Some("the choice, and the polarity, of an architecture");
    }
    parts(name).iter().find_map(|part| WORDS.into_iter().find(|word| word == part))
}

/// `MovntiKernel` and `MOVNTI_KERNEL` are `movnti` and `kernel`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && before.is_lowercase() {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().expect("not empty").extend(c.to_lowercase());
        }
        before = c;
    }
    parts
}

#[test]
fn words_of_a_processor_are_found_in_names_and_not_in_comments() {
    let complaints = |path: &str, text: &str| check(&[Source::new(path, text)]);
    for text in [
        "fn read_cr3() {}",
        "let a = Kernel::Movnti;",
        "const USES_AVX512: u8 = 0;",
        "#[cfg(target_arch)] fn f() {}",
    ] {
        assert_eq!(complaints("crates/quire/src/tlb/a.rs", text).len(), 1, "{text}");
        assert_eq!(complaints("crates/quire/src/arch/x86_64/a.rs", text), [""; 0]);
    }
    assert_eq!(complaints("crates/quire/src/tlb/invlpg.rs", "").len(), 1);
    assert_eq!(
        complaints("crates/quire/src/tlb/a.rs", "// CR3\nfn accept_msrs(intelligent: &str) {}"),
        [""; 0]
    );
}
