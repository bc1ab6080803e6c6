//! Writes a trace: into a file beside the target, which takes the target's name only when it is whole.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use zstd::stream::write::Encoder as Zstd;

use super::encode::Encoder;
use super::wire::Sink;
use super::{
    CHUNK_MAX, Event, EventKind, HEADER_MAX, Header, MAGIC, PATH_BYTES_MAX, PATH_MAX, PathId, THREADS_MAX,
    Totals, TraceError, VERSION, WINDOW_LOG,
};

/// A chunk is written once it has this many bytes; the rest up to [`CHUNK_MAX`] is room for one more entry.
const CHUNK_TARGET: usize = 64 * 1024;

/// Compression level: the highest whose memory stays moderate; traces are written once and read often.
const LEVEL: i32 = 15;

/// Writes a trace. Until [`TraceWriter::finish`] the target is not touched; a writer that is dropped
/// leaves nothing behind.
pub struct TraceWriter {
    target: PathBuf,
    temp: NamedTempFile,
    zstd: Zstd<'static, BufWriter<File>>,
    header: Header,
    encoder: Encoder,
    chunk: Sink,
    paths: HashMap<String, PathId>,
    path_bytes: usize,
}

impl TraceWriter {
    /// Starts a trace that will become `target`. Of the header, `totals` and `events` are replaced at the end.
    ///
    /// # Errors
    /// [`TraceError::Io`] if the target's directory can't be written, or the target is a directory;
    /// [`TraceError::TooLarge`] for a command line of several megabytes.
    pub fn create(target: &Path, header: &Header) -> Result<TraceWriter, TraceError> {
        if target.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
        }
        let directory = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut temp =
            tempfile::Builder::new().prefix(".quire-").suffix(".partial").tempfile_in(directory)?;
        let header = Header { version: VERSION, ..header.clone() };
        write_prefix(temp.as_file_mut(), &header)?;
        let mut zstd = Zstd::new(BufWriter::new(temp.as_file().try_clone()?), LEVEL)?;
        zstd.include_checksum(true)?;
        zstd.window_log(WINDOW_LOG)?;
        Ok(TraceWriter {
            target: target.to_owned(),
            temp,
            zstd,
            header,
            encoder: Encoder::default(),
            chunk: Sink::default(),
            paths: HashMap::new(),
            path_bytes: 0,
        })
    }

    /// The number of a path (or of a program's name), to be used in later events.
    ///
    /// # Errors
    /// [`TraceError::TooLarge`] for a path over 8 KiB or more than 64 MiB of paths; [`TraceError::Io`].
    pub fn path(&mut self, path: &str) -> Result<PathId, TraceError> {
        if let Some(id) = self.paths.get(path) {
            return Ok(*id);
        }
        self.path_bytes += path.len() + size_of::<String>();
        if path.len() > PATH_MAX || self.path_bytes > PATH_BYTES_MAX {
            return Err(TraceError::TooLarge { what: "the table of paths", cure: "record a shorter run" });
        }
        let id = PathId(self.paths.len() as u32);
        self.paths.insert(path.to_owned(), id);
        self.encoder.path(path, &mut self.chunk);
        self.flush_full()?;
        Ok(id)
    }

    /// Appends an event.
    ///
    /// # Errors
    /// [`TraceError::OutOfOrder`] if its time is before that of the event before; [`TraceError::TooLarge`]
    /// for more than four million threads; [`TraceError::Io`].
    ///
    /// # Panics
    /// If the event contains a [`PathId`] that [`TraceWriter::path`] did not give.
    pub fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        let last_ns = self.encoder.last_ns();
        if event.time_ns < last_ns {
            return Err(TraceError::OutOfOrder { time_ns: event.time_ns, last_ns });
        }
        if self.encoder.threads() >= THREADS_MAX {
            return Err(TraceError::TooLarge { what: "the number of threads", cure: "record a shorter run" });
        }
        if let Some(path) = path_of(&event.kind) {
            assert!((path.0 as usize) < self.paths.len(), "path {} is not of this writer", path.0);
        }
        self.encoder.event(event, &mut self.chunk);
        self.header.events += 1;
        self.flush_full()
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.header.events
    }

    /// Ends the trace and gives it its name. Returns its size in bytes.
    ///
    /// # Errors
    /// [`TraceError::Io`]; the target is then as it was before.
    pub fn finish(mut self, totals: Totals) -> Result<u64, TraceError> {
        if self.chunk.len() > 0 {
            self.flush_chunk()?;
        }
        let count = self.header.events.to_le_bytes();
        self.zstd.write_all(&0u32.to_le_bytes())?;
        self.zstd.write_all(&crc32fast::hash(&count).to_le_bytes())?;
        self.zstd.write_all(&count)?;
        self.zstd.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        self.header.totals = totals;
        let file = self.temp.as_file_mut();
        file.seek(SeekFrom::Start(0))?;
        write_prefix(file, &self.header)?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        let size = file.metadata()?.len();
        file.sync_all()?;
        self.temp.persist(&self.target).map_err(|error| error.error)?;
        Ok(size)
    }

    fn flush_full(&mut self) -> Result<(), TraceError> {
        if self.chunk.len() >= CHUNK_TARGET { self.flush_chunk() } else { Ok(()) }
    }

    fn flush_chunk(&mut self) -> Result<(), TraceError> {
        let bytes = self.chunk.bytes();
        debug_assert!(bytes.len() <= CHUNK_MAX);
        self.zstd.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.zstd.write_all(&crc32fast::hash(bytes).to_le_bytes())?;
        self.zstd.write_all(bytes)?;
        self.chunk.clear();
        Ok(())
    }
}

/// Magic, version, and the header with its length and checksum; the same length whatever the counts.
fn write_prefix(file: &mut File, header: &Header) -> Result<(), TraceError> {
    let payload = header.encode();
    if payload.len() > HEADER_MAX {
        return Err(TraceError::TooLarge {
            what: "the command line",
            cure: "put the arguments into a script",
        });
    }
    let mut prefix = Vec::with_capacity(payload.len() + 18);
    prefix.extend_from_slice(&MAGIC);
    prefix.extend_from_slice(&VERSION.to_le_bytes());
    prefix.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    prefix.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
    prefix.extend_from_slice(&payload);
    file.write_all(&prefix)?;
    Ok(())
}

fn path_of(kind: &EventKind) -> Option<PathId> {
    match kind {
        EventKind::Exec { name } => Some(*name),
        EventKind::Map { file, .. } => file.map(|file| file.path),
        EventKind::Syscall(call) => call.file.map(|file| file.path),
        _ => None,
    }
}
