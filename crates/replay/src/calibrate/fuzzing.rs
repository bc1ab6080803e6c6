//! For the fuzzer: reads the file of a calibration.

/// Parses the bytes as a calibration.
pub fn saved(bytes: &[u8]) {
    let _ = super::Saved::parse(bytes).and_then(|saved| saved.calibration());
}
