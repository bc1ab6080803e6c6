//! A queue of packets. Each is sent by one call and received by one call, whole or cut off.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::address::Address;
use crate::errno::Errno;
use crate::files::events::{Events, READABLE, WRITABLE, Waiters};
use crate::files::io::{Sink, Source};
use crate::files::rights::Rights;
use crate::sync::Mutex;
use linux_raw_sys::general::POLLHUP;

/// A queue with so many bytes has no room for one more packet, as a socket's buffer in Linux (`net.core.wmem_default`).
const FULL_BYTES: usize = 212_992;
/// What a packet counts besides its bytes.
const OVERHEAD: usize = 512;
/// The most bytes of a packet, as in Linux.
const MOST_BYTES: usize = FULL_BYTES - 32;

/// What a call receives besides bytes.
#[derive(Default)]
pub struct Beside {
    /// Files that came with them.
    pub rights: Option<Rights>,
    /// Of a packet: how many bytes it has, also those that the buffer had no room for, and the address of its sender.
    pub packet: Option<(usize, Address)>,
}

struct Packet {
    bytes: Arc<Vec<u8>>,
    from: Address,
    rights: Option<Rights>,
}

/// A queue between senders and receivers.
pub struct Packets {
    state: Mutex<State>,
    receivers: Arc<Waiters>,
    senders: Arc<Waiters>,
}

struct State {
    waiting: VecDeque<Packet>,
    /// How many bytes all of them have, and with what each counts besides.
    bytes: usize,
    charged: usize,
    has_receiver: bool,
    has_sender: bool,
}

impl Packets {
    /// An empty queue whose receivers and senders wait so.
    pub fn new(receivers: &Arc<Waiters>, senders: &Arc<Waiters>) -> Self {
        let state =
            State { waiting: VecDeque::new(), bytes: 0, charged: 0, has_receiver: true, has_sender: true };
        Self { state: Mutex::new(state), receivers: receivers.clone(), senders: senders.clone() }
    }

    /// Its receiver has gone for ever, or its senders have.
    pub fn leave(&self, receives: bool, sends: bool) {
        let mut state = self.state.lock();
        state.has_receiver &= !receives;
        state.has_sender &= !sends;
        drop(state);
        self.receivers.notify();
        self.senders.notify();
    }

    /// Drops all packets.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        let waiting = core::mem::take(&mut state.waiting);
        (state.bytes, state.charged) = (0, 0);
        drop(state);
        // Without the lock: this may close files.
        drop(waiting);
    }

    /// Whether it has no packet.
    pub fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_empty()
    }

    /// How many bytes all packets have.
    pub fn len(&self) -> usize {
        self.state.lock().bytes
    }

    /// How many bytes the first packet has.
    pub fn first_len(&self) -> usize {
        self.state.lock().waiting.front().map_or(0, |packet| packet.bytes.len())
    }

    /// What a receiver, or a sender, is ready for.
    pub fn poll(&self, receives: bool, sends: bool) -> Events {
        let state = self.state.lock();
        let mut events = 0;
        if receives && !state.waiting.is_empty() {
            events |= READABLE;
        }
        if receives && !state.has_sender {
            events |= POLLHUP;
        }
        if sends && (state.charged < FULL_BYTES || !state.has_receiver) {
            events |= WRITABLE;
        }
        events
    }

    /// Takes the first packet, or only looks at it. `None` if there is none and one may come; 0 bytes at the end.
    ///
    /// # Errors
    /// [`Errno::EFAULT`]; the packet is lost then.
    pub fn receive(
        &self,
        to: &mut dyn Sink,
        take: bool,
        beside: &mut Beside,
    ) -> Result<Option<usize>, Errno> {
        let mut state = self.state.lock();
        let Some(first) = state.waiting.front() else {
            return Ok((!state.has_sender).then_some(0));
        };
        let (bytes, from) = (first.bytes.clone(), first.from.clone());
        if take && let Some(packet) = state.waiting.pop_front() {
            state.bytes -= bytes.len();
            state.charged -= bytes.len() + OVERHEAD;
            beside.rights = packet.rights;
        }
        drop(state);
        if take {
            self.senders.notify();
        }
        beside.packet = Some((bytes.len(), from));
        let part = &bytes[..bytes.len().min(to.left())];
        if to.put(part)? < part.len() {
            return Err(Errno::EFAULT);
        }
        Ok(Some(part.len()))
    }

    /// Sends a packet from a socket with this address. `None` if there is no room for it.
    ///
    /// # Errors
    /// [`Errno::EMSGSIZE`] for a packet that is too large; [`Errno::EPIPE`] without a receiver; [`Errno::EFAULT`],
    /// [`Errno::ENOMEM`].
    pub fn send(
        &self,
        source: &mut dyn Source,
        from: &Address,
        rights: &mut Option<Rights>,
    ) -> Result<Option<usize>, Errno> {
        let length = source.left();
        if length > MOST_BYTES {
            return Err(Errno::EMSGSIZE);
        }
        if !self.may_take()? {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
        bytes.resize(length, 0);
        if source.take(&mut bytes)? < length {
            return Err(Errno::EFAULT);
        }
        let (bytes, from) = (Arc::new(bytes), from.clone());
        let mut state = self.state.lock();
        if !state.has_receiver {
            return Err(Errno::EPIPE);
        }
        state.waiting.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        state.bytes += length;
        state.charged += length + OVERHEAD;
        state.waiting.push_back(Packet { bytes, from, rights: rights.take() });
        drop(state);
        self.receivers.notify();
        Ok(Some(length))
    }

    /// Whether there is room for a packet.
    fn may_take(&self) -> Result<bool, Errno> {
        let state = self.state.lock();
        if state.has_receiver { Ok(state.charged < FULL_BYTES) } else { Err(Errno::EPIPE) }
    }
}
