//! One direction of a connection: bytes, or packets.

use alloc::sync::Arc;

use super::SocketType;
use super::packets::Packets;
use crate::files::events::{Events, Waiters};
use crate::files::pipe::Pipe;

/// See the module.
pub enum Direction {
    /// A stream.
    Bytes(Pipe),
    /// Packets, each of which arrives as it was sent.
    Packets(Packets),
}

impl Direction {
    /// An empty one whose reader and writer wait so.
    pub fn between(kind: SocketType, reader: &Arc<Waiters>, writer: &Arc<Waiters>) -> Self {
        match kind {
            SocketType::Stream => Self::Bytes(Pipe::between(reader, writer)),
            SocketType::Packet | SocketType::Datagram => Self::Packets(Packets::new(reader, writer)),
        }
    }

    /// The reader or the writer has gone for ever.
    pub fn leave(&self, reads: bool, writes: bool) {
        match self {
            Self::Bytes(pipe) => pipe.leave(reads, writes),
            Self::Packets(packets) => packets.leave(reads, writes),
        }
    }

    /// Drops what it contains.
    pub fn clear(&self) {
        match self {
            Self::Bytes(pipe) => pipe.clear(),
            Self::Packets(packets) => packets.clear(),
        }
    }

    /// Whether nothing waits in it.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Bytes(pipe) => pipe.len() == 0,
            Self::Packets(packets) => packets.is_empty(),
        }
    }

    /// How many bytes are in it.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(pipe) => pipe.len(),
            Self::Packets(packets) => packets.len(),
        }
    }

    /// What its reader, or its writer, is ready for.
    pub fn poll(&self, reads: bool, writes: bool) -> Events {
        match self {
            Self::Bytes(pipe) => pipe.poll(reads, writes),
            Self::Packets(packets) => packets.poll(reads, writes),
        }
    }
}
