//! For the fuzzer: the parsers of text that the recorder reads.

/// Runs every parser of this module on the same text.
pub fn texts(text: &str) {
    let _ = super::args::parse_ring(text);
    let _ = super::perf::parse_cpus(text);
    let _ = super::follow::parse_stat(text);
    let _ = super::tracefs::parse_format(text);
}
