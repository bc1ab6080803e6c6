//! Reads a trace, event by event, with bounded memory whatever the bytes are.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use zstd::stream::read::Decoder as Zstd;

use super::decode::Decoder;
use super::wire::{Cursor, Malformed};
use super::{
    CHUNK_MAX, Event, HEADER_MAX, Header, MAGIC, OLDEST_VERSION, PathId, TraceError, VERSION, WINDOW_LOG,
};

/// Bytes before the payload of a chunk.
const CHUNK_HEAD: u64 = 8;

/// The event stream has at most this many bytes for each byte of the file. A recording stays below a tenth of
/// this, because of the times of its events alone.
const EXPANDED_MOST: u64 = 256;

/// Bytes of the event stream that are allowed for any file.
const EXPANDED_FREE: u64 = 4 << 20;

/// A source, with a count of its bytes.
struct Counted<R> {
    source: R,
    read: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(bytes)?;
        self.read += count as u64;
        Ok(count)
    }
}

/// Reads a trace: an iterator over its events. After an error, and after the last event, it returns `None`.
///
/// It returns no event of a damaged chunk; a file that ends early gives [`TraceError::Truncated`] instead of
/// the first missing event.
pub struct TraceReader<R: Read = File> {
    header: Header,
    zstd: Zstd<'static, BufReader<Counted<R>>>,
    /// Bytes of the event stream so far, decompressed.
    expanded: u64,
    chunk: Vec<u8>,
    /// The decoded bytes of `chunk`.
    position: usize,
    decoder: Decoder,
    events: u64,
    done: bool,
}

impl TraceReader<File> {
    /// Opens a trace and reads its header.
    ///
    /// # Errors
    /// Any [`TraceError`] that the first bytes can show.
    pub fn open(path: impl AsRef<Path>) -> Result<TraceReader<File>, TraceError> {
        TraceReader::new(File::open(path)?)
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads the header of a trace from any source.
    ///
    /// # Errors
    /// Any [`TraceError`] that the first bytes can show.
    pub fn new(source: R) -> Result<TraceReader<R>, TraceError> {
        let mut source = BufReader::new(Counted { source, read: 0 });
        let mut magic = Vec::new();
        source.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        if magic != MAGIC {
            let cut = !magic.is_empty() && MAGIC.starts_with(&magic);
            return Err(if cut { TraceError::Truncated } else { TraceError::NotATrace });
        }
        let found = u16::from_le_bytes(fixed(&mut source)?);
        if !(OLDEST_VERSION..=VERSION).contains(&found) {
            return Err(TraceError::WrongVersion { found, supported: VERSION });
        }
        let corrupt = TraceError::Corrupt { at: 0 };
        let length = u32::from_le_bytes(fixed(&mut source)?) as usize;
        let checksum = u32::from_le_bytes(fixed(&mut source)?);
        if length > HEADER_MAX {
            return Err(corrupt);
        }
        let mut payload = Vec::new();
        source.by_ref().take(length as u64).read_to_end(&mut payload)?;
        if payload.len() < length {
            return Err(TraceError::Truncated);
        }
        if crc32fast::hash(&payload) != checksum {
            return Err(corrupt);
        }
        let header = Header::decode(found, &payload).map_err(|Malformed| corrupt)?;
        let mut zstd = Zstd::with_buffer(source)?;
        zstd.window_log_max(WINDOW_LOG)?;
        Ok(TraceReader {
            header,
            zstd,
            expanded: 0,
            chunk: Vec::new(),
            position: 0,
            decoder: Decoder::of(found),
            events: 0,
            done: false,
        })
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The string with this number, once an event that names it has been read.
    pub fn path(&self, id: PathId) -> Option<&str> {
        self.decoder.path(id)
    }

    /// All strings that the events read so far name, by number.
    pub fn paths(&self) -> &[String] {
        self.decoder.paths()
    }

    /// The events read so far.
    pub fn events_read(&self) -> u64 {
        self.events
    }

    fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            if self.position == self.chunk.len() && !self.next_chunk()? {
                return Ok(None);
            }
            let mut cursor = Cursor::new(&self.chunk[self.position..]);
            let entry = self.decoder.entry(&mut cursor);
            self.position = self.chunk.len() - cursor.remaining();
            if let Some(event) = entry.map_err(|Malformed| self.corrupt())? {
                self.events += 1;
                return Ok(Some(event));
            }
        }
    }

    /// Reads the next chunk; false after the end marker.
    fn next_chunk(&mut self) -> Result<bool, TraceError> {
        let length = u32::from_le_bytes(self.fixed()?) as usize;
        let checksum = u32::from_le_bytes(self.fixed()?);
        if length > CHUNK_MAX {
            return Err(self.corrupt());
        }
        self.expanded += length as u64 + CHUNK_HEAD;
        if self.expanded > EXPANDED_FREE + EXPANDED_MOST * self.zstd.get_ref().get_ref().read {
            return Err(TraceError::Bloated { at: self.events });
        }
        if length == 0 {
            return self.end(checksum).map(|()| false);
        }
        self.chunk.resize(length, 0);
        self.position = 0;
        self.zstd.read_exact(&mut self.chunk).map_err(|error| damage(error, self.events))?;
        if crc32fast::hash(&self.chunk) != checksum {
            return Err(self.corrupt());
        }
        Ok(true)
    }

    /// Checks the end marker, and that nothing follows it.
    fn end(&mut self, checksum: u32) -> Result<(), TraceError> {
        let count: [u8; 8] = self.fixed()?;
        let events = u64::from_le_bytes(count);
        if crc32fast::hash(&count) != checksum || events != self.events || events != self.header.events {
            return Err(self.corrupt());
        }
        let mut beyond = [0];
        match self.zstd.read(&mut beyond) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.corrupt()),
            Err(error) => Err(damage(error, self.events)),
        }
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let mut bytes = [0; N];
        self.zstd.read_exact(&mut bytes).map_err(|error| damage(error, self.events))?;
        Ok(bytes)
    }

    fn corrupt(&self) -> TraceError {
        TraceError::Corrupt { at: self.events }
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.next_event();
        self.done = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

fn fixed<const N: usize>(source: &mut impl Read) -> Result<[u8; N], TraceError> {
    let mut bytes = [0; N];
    source.read_exact(&mut bytes).map_err(|error| damage(error, 0))?;
    Ok(bytes)
}

/// Distinguishes a short file, bytes that zstd refuses, and a failing disk.
fn damage(error: io::Error, at: u64) -> TraceError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        TraceError::Truncated
    } else if error.raw_os_error().is_some() {
        TraceError::Io(error)
    } else {
        TraceError::Corrupt { at }
    }
}
