//! Writes a trace into a draft, which becomes the target when it is complete.
//!
//! After each chunk all events so far are in the file, so a full disk loses only the chunk that did not fit
//! and later ones: the trace then ends after the last chunk that fitted. It ends in the same way where the format
//! takes no more.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use zstd::stream::write::Encoder as Zstd;

use super::encode::Encoder;
use super::wire::Sink;
use super::{
    CHUNK_MAX, Event, EventKind, HEADER_MAX, Header, MAGIC, PATH_BYTES_MAX, PATH_MAX, PathId, THREADS_MAX,
    Totals, TraceError, VERSION, WINDOW_LOG,
};
use crate::output::{Draft, Target};

/// A chunk is written once it has this many bytes; the rest up to [`CHUNK_MAX`] is space for one more entry.
/// A full disk loses at most this much of the events that would fit.
const CHUNK_TARGET: usize = 16 * 1024;

/// Compression level. The recorder compresses while the program runs, and takes processors from it. For the
/// traces in `traces/`, level 9 makes files 4 % smaller and takes four times the processor time, 55 ns for a
/// byte of events; level 5 makes them 2 % smaller and takes twice.
const LEVEL: i32 = 3;

/// Writes a trace. Until [`TraceWriter::finish`] a regular target file stays as it was; a dropped writer
/// leaves nothing behind.
pub struct TraceWriter {
    draft: Draft,
    zstd: Zstd<'static, File>,
    header: Header,
    encoder: Encoder,
    chunk: Sink,
    paths: HashMap<String, PathId>,
    path_bytes: usize,
    first_ns: Option<u64>,
    /// Places where the trace may end; the first is after the header.
    marks: Vec<Mark>,
    /// The error that stopped the writing.
    stopped: Option<io::Error>,
}

/// A place in the file after whole chunks.
#[derive(Clone, Copy)]
struct Mark {
    bytes: u64,
    events: u64,
    last_ns: u64,
}

/// A trace that has been written.
#[derive(Debug)]
pub struct Written {
    /// Its size in bytes.
    pub bytes: u64,
    /// Its events.
    pub events: u64,
    /// Why it has fewer events than the writer was given, if it has.
    pub cut: Option<io::Error>,
}

impl TraceWriter {
    /// Starts a trace that will become `target`, which is a name as [`Target::open`] takes it. Of the header, `totals`
    /// and `events` are replaced at the end.
    ///
    /// # Errors
    /// [`TraceError::Io`] if the target can't be written; [`TraceError::TooLarge`] for a command line of several megabytes.
    pub fn create(target: &Path, header: &Header) -> Result<TraceWriter, TraceError> {
        TraceWriter::to(Target::open(target)?, header)
    }

    /// The same for a target that is open.
    ///
    /// # Errors
    /// As [`TraceWriter::create`].
    pub fn to(target: Target, header: &Header) -> Result<TraceWriter, TraceError> {
        let mut draft = Draft::of(target)?;
        let header = Header { version: VERSION, events: 0, ..header.clone() };
        write_prefix(draft.file(), &header)?;
        let start = Mark { bytes: draft.file().stream_position()?, events: 0, last_ns: 0 };
        // Each chunk has its checksum; one of the whole frame could be checked only at the frame's end.
        let mut zstd = Zstd::new(draft.file().try_clone()?, LEVEL)?;
        zstd.window_log(WINDOW_LOG)?;
        Ok(TraceWriter {
            draft,
            zstd,
            header,
            encoder: Encoder::default(),
            chunk: Sink::default(),
            paths: HashMap::new(),
            path_bytes: 0,
            first_ns: None,
            marks: vec![start],
            stopped: None,
        })
    }

    /// The number of a path (or of a program's name), to be used in later events. A path over 8 KiB is shortened;
    /// the trace ends before more than 64 MiB of paths.
    pub fn path(&mut self, path: &str) -> PathId {
        if self.stopped.is_some() {
            return PathId(0);
        }
        let path = shortened(path);
        if let Some(id) = self.paths.get(path) {
            return *id;
        }
        self.path_bytes += path.len() + size_of::<String>();
        if self.path_bytes > PATH_BYTES_MAX {
            self.stop("a trace has 64 MiB of paths at most");
            return PathId(0);
        }
        let id = PathId(self.paths.len() as u32);
        self.paths.insert(path.to_owned(), id);
        self.encoder.path(path, &mut self.chunk);
        self.flush_full();
        id
    }

    /// Appends an event. Once the file takes no more, or there are four million threads, events are only counted,
    /// and [`TraceWriter::close`] reports it.
    ///
    /// # Errors
    /// [`TraceError::OutOfOrder`] if its time is before that of the event before.
    ///
    /// # Panics
    /// If the event contains a [`PathId`] that [`TraceWriter::path`] did not give.
    pub fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        if self.stopped.is_none() && self.encoder.threads() >= THREADS_MAX {
            self.stop("a trace has four million threads at most");
        }
        if self.stopped.is_some() {
            self.header.events += 1;
            return Ok(());
        }
        let last_ns = self.encoder.last_ns();
        if event.time_ns < last_ns {
            return Err(TraceError::OutOfOrder { time_ns: event.time_ns, last_ns });
        }
        if let Some(path) = path_of(&event.kind) {
            assert!((path.0 as usize) < self.paths.len(), "path {} is not of this writer", path.0);
        }
        self.encoder.event(event, &mut self.chunk);
        self.first_ns.get_or_insert(event.time_ns);
        self.header.events += 1;
        self.flush_full();
        Ok(())
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.header.events
    }

    /// As [`TraceWriter::close`], for the size in bytes alone.
    ///
    /// # Errors
    /// As [`TraceWriter::close`].
    pub fn finish(self, totals: Totals) -> Result<u64, TraceError> {
        self.close(totals).map(|written| written.bytes)
    }

    /// Ends the trace and moves it to the target. Events that the file did not take count as lost in the
    /// header.
    ///
    /// # Errors
    /// [`TraceError::Io`] if not even an empty trace fits, or the target takes none; a regular file is then as it was.
    pub fn close(mut self, totals: Totals) -> Result<Written, TraceError> {
        if self.stopped.is_none() {
            self.stopped = self.end().err();
        }
        let given = self.header.events;
        self.header.totals = totals;
        let cut = match self.stopped.take() {
            Some(cause) => Some(self.cut(cause)?),
            None => None,
        };
        let file = self.draft.file();
        file.seek(SeekFrom::Start(0))?;
        write_prefix(file, &self.header)?;
        let (bytes, events) = (file.metadata()?.len(), self.header.events);
        self.draft.finish()?;
        Ok(Written { bytes, events, cut: cut.filter(|_| events < given) })
    }

    /// Ends the trace behind what was written, for a limit of the format.
    fn stop(&mut self, limit: &'static str) {
        let flushed = if self.chunk.len() > 0 { self.flush_chunk() } else { Ok(()) };
        self.stopped = Some(flushed.err().unwrap_or_else(|| io::Error::other(limit)));
    }

    fn flush_full(&mut self) {
        if self.chunk.len() >= CHUNK_TARGET {
            self.stopped = self.flush_chunk().err();
        }
    }

    /// Writes the chunk, and all of it into the file.
    fn flush_chunk(&mut self) -> io::Result<()> {
        let bytes = self.chunk.bytes();
        debug_assert!(bytes.len() <= CHUNK_MAX);
        self.zstd.write_all(&(bytes.len() as u32).to_le_bytes())?;
        self.zstd.write_all(&crc32fast::hash(bytes).to_le_bytes())?;
        self.zstd.write_all(bytes)?;
        self.chunk.clear();
        self.zstd.flush()?;
        let bytes = self.zstd.get_mut().stream_position()?;
        self.marks.push(Mark { bytes, events: self.header.events, last_ns: self.encoder.last_ns() });
        Ok(())
    }

    /// Writes the last chunk and the end marker.
    fn end(&mut self) -> io::Result<()> {
        if self.chunk.len() > 0 {
            self.flush_chunk()?;
        }
        self.zstd.write_all(&end_marker(self.header.events))?;
        self.zstd.do_finish()
    }

    /// Ends the trace after the last chunk at which the end fits, and records it in the header. Returns the
    /// cause.
    fn cut(&mut self, cause: io::Error) -> Result<io::Error, TraceError> {
        let file = self.draft.file();
        for (at, mark) in self.marks.iter().enumerate().rev() {
            let end = if at == 0 { whole_frame(mark.events)? } else { last_block(mark.events) };
            // It overwrites existing bytes, as far as they go, so a full disk takes it.
            if file.write_all_at(&end, mark.bytes).is_err() {
                continue;
            }
            file.set_len(mark.bytes + end.len() as u64)?;
            let totals = &mut self.header.totals;
            totals.lost += self.header.events - mark.events;
            totals.wall_ns = mark.last_ns - self.first_ns.unwrap_or(0).min(mark.last_ns);
            // The kernel counted for the whole run, so nothing is known of this part.
            totals.kernel_faults = 0;
            self.header.events = mark.events;
            return Ok(cause);
        }
        Err(cause.into())
    }
}

/// The part of a path that a trace takes. Names that are no text become longer as text.
fn shortened(path: &str) -> &str {
    let mut end = path.len().min(PATH_MAX);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    &path[..end]
}

/// The end of the stream of chunks.
fn end_marker(events: u64) -> [u8; 16] {
    let count = events.to_le_bytes();
    let mut marker = [0; 16];
    marker[4..8].copy_from_slice(&crc32fast::hash(&count).to_le_bytes());
    marker[8..].copy_from_slice(&count);
    marker
}

/// The end marker as the last block of a frame that has been flushed: not compressed, behind three bytes that say so
/// (RFC 8878, section 3.1.1.2).
fn last_block(events: u64) -> Vec<u8> {
    let marker = end_marker(events);
    let header = ((marker.len() as u32) << 3 | 1).to_le_bytes();
    [&header[..3], &marker].concat()
}

/// The end marker as a frame of its own.
fn whole_frame(events: u64) -> io::Result<Vec<u8>> {
    zstd::bulk::compress(&end_marker(events), LEVEL)
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
