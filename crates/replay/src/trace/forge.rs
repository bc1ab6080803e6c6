//! Files for the fuzzer, and for what it found: any header and any events, with valid checksums.

use super::encode::Encoder;
use super::wire::Sink;
use super::{CHUNK_MAX, Event, Header, MAGIC, VERSION};

/// A file with these payloads of the header and of the event stream, in chunks.
pub fn around(header: &[u8], stream: &[u8], events: u64) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&(header.len() as u32).to_le_bytes());
    file.extend_from_slice(&crc32fast::hash(header).to_le_bytes());
    file.extend_from_slice(header);
    let mut plain = Vec::with_capacity(stream.len() + 32);
    for chunk in stream.chunks(CHUNK_MAX) {
        plain.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
        plain.extend_from_slice(&crc32fast::hash(chunk).to_le_bytes());
        plain.extend_from_slice(chunk);
    }
    let count = events.to_le_bytes();
    plain.extend_from_slice(&0u32.to_le_bytes());
    plain.extend_from_slice(&crc32fast::hash(&count).to_le_bytes());
    plain.extend_from_slice(&count);
    file.extend_from_slice(&zstd::bulk::compress(&plain, 1).expect("memory is there"));
    file
}

/// The payload of a header.
pub fn header(header: &Header) -> Vec<u8> {
    header.encode()
}

/// The payload of an event stream that defines `paths` first.
pub fn stream(paths: &[&str], events: &[Event]) -> Vec<u8> {
    let (mut encoder, mut sink) = (Encoder::default(), Sink::default());
    paths.iter().for_each(|path| encoder.path(path, &mut sink));
    events.iter().for_each(|event| encoder.event(event, &mut sink));
    sink.into_bytes()
}
