//! `/dev/null`, `/dev/zero` and `/dev/full`.

use super::io::{Chunk, Sink, Source};
use super::open::{File, Io, Mapping};
use crate::errno::Errno;
use crate::task::sched;

/// Takes everything, and gives nothing.
pub struct Null;
/// Takes everything, and gives zeroes.
pub struct Zero;
/// Gives zeroes, and is always full.
pub struct Full;

impl File for Null {
    fn read(&self, _position: &mut u64, _to: &mut dyn Sink, _io: Io) -> Result<usize, Errno> {
        Ok(0)
    }

    fn write(&self, _position: &mut u64, from: &mut dyn Source, _io: Io) -> Result<usize, Errno> {
        Ok(from.left())
    }
}

impl File for Zero {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, _io: Io) -> Result<usize, Errno> {
        put_zeroes(to)
    }

    fn write(&self, _position: &mut u64, from: &mut dyn Source, _io: Io) -> Result<usize, Errno> {
        Ok(from.left())
    }

    fn mapping(&self) -> Result<Mapping<'_>, Errno> {
        Ok(Mapping::Zeroes)
    }
}

impl File for Full {
    fn read(&self, _position: &mut u64, to: &mut dyn Sink, _io: Io) -> Result<usize, Errno> {
        put_zeroes(to)
    }

    fn write(&self, _position: &mut u64, _from: &mut dyn Source, _io: Io) -> Result<usize, Errno> {
        Err(Errno::ENOSPC)
    }
}

fn put_zeroes(to: &mut dyn Sink) -> Result<usize, Errno> {
    let chunk = Chunk::for_bytes(to.left())?;
    let mut done = 0;
    while to.left() > 0 {
        let part = chunk.len().min(to.left());
        match to.put(&chunk[..part]) {
            Ok(put) => {
                done += put;
                if put < part || sched::call_shall_end() {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}
