//! `/dev/null`, `/dev/zero` and `/dev/full`.

use super::io::{self, Sink, Source};
use super::open::{File, Io, Mapping};
use crate::errno::Errno;

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
    io::produce(to, |_| {})
}
