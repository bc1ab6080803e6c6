//! Whatever is read as text: the command line, sizes, calibrations, and what the kernel shows to the recorder.
#![no_main]

use lab::{calibrate, cli, record, replay};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    if which.is_multiple_of(4) {
        return calibrate::fuzzing::saved(bytes);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match which % 4 {
        1 => {
            let words: Vec<&str> = std::iter::once("quire").chain(text.split('\n')).collect();
            cli::parses(&words);
        }
        2 => replay::fuzzing::sizes(text),
        _ => record::fuzzing::texts(text),
    }
});
