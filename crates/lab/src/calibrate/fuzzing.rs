//! For the fuzzer: reads the file of a calibration.

/// What the bytes say, if anything.
pub fn saved(bytes: &[u8]) {
    let _ = super::Saved::parse(bytes).and_then(|saved| saved.calibration());
}
