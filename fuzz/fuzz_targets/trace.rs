//! The reader of traces: bytes as they are, and bytes in the place of header and events with checksums that hold.
#![no_main]

use arbitrary::Arbitrary;
use lab::trace::{TraceReader, forge};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum File<'a> {
    Raw(&'a [u8]),
    Events { count: u8, stream: &'a [u8] },
    Header(&'a [u8]),
}

fuzz_target!(|file: File<'_>| {
    let forged;
    let bytes = match file {
        File::Raw(bytes) => bytes,
        File::Events { count, stream } => {
            forged = forge::around(&quire_fuzz::header_payload(), stream, u64::from(count));
            &forged
        }
        File::Header(header) => {
            forged = forge::around(header, &[], 0);
            &forged
        }
    };
    let Ok(reader) = TraceReader::new(bytes) else { return };
    // An end with an error is one line; after it nothing comes.
    assert!(reader.skip_while(Result::is_ok).count() <= 1);
});
