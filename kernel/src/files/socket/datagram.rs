//! Datagrams between unix sockets: each socket has a queue, to which any other one may send.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use super::address::{Address, Family};
use super::connection::{Endpoint, Maker, READ, WRITE};
use super::packets::{Beside, Packets};
use super::stream::Transfer;
use crate::errno::Errno;
use crate::files::events::{Events, READABLE, WRITABLE, Waiters};
use crate::files::io::{Sink, Source};
use crate::files::rights::{Rights, Traffic};
use crate::memory::list;
use crate::sync::Mutex;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLRDHUP};

/// What a socket has for datagrams.
pub struct Datagrams {
    endpoint: Arc<Endpoint>,
    /// What has come and was not received.
    inbox: Packets,
    /// Senders that wait for room in it.
    senders: Arc<Waiters>,
    /// The sockets that are connected to this one: `poll` tells them of room in the queue too.
    connected: Mutex<Vec<Weak<Endpoint>>>,
    /// Where it sends to if a call names no other, and the only one that it receives from.
    peer: Mutex<Option<Weak<Datagrams>>>,
    address: Mutex<Address>,
    shut: AtomicU32,
    /// What made it and another one as a pair.
    pub pair_maker: Option<Maker>,
    /// The files that are on their way to it, and how often it is on its way.
    pub traffic: Arc<Traffic>,
}

impl Datagrams {
    /// Those of a socket without a name. The maker is that of a pair.
    pub fn new(endpoint: &Arc<Endpoint>, pair_maker: Option<Maker>) -> Arc<Self> {
        let senders = Arc::default();
        Arc::new(Self {
            endpoint: endpoint.clone(),
            inbox: Packets::new(&endpoint.waiters, &senders),
            senders,
            connected: Mutex::default(),
            peer: Mutex::default(),
            address: Mutex::new(Address::none(Family::Unix)),
            shut: AtomicU32::new(0),
            pair_maker,
            traffic: Arc::default(),
        })
    }

    /// Its socket is bound to an address.
    pub fn set_address(&self, address: Address) {
        *self.address.lock() = address;
    }

    /// Its address.
    pub fn address(&self) -> Address {
        self.address.lock().clone()
    }

    /// How many bytes the datagram has that comes next.
    pub fn first_len(&self) -> usize {
        self.inbox.first_len()
    }

    /// From now on it sends to another one, and receives from no other; or to and from all.
    ///
    /// # Errors
    /// [`Errno::EPERM`] if the other one receives from another socket; [`Errno::ENOMEM`].
    pub fn connect(self: &Arc<Self>, to: Option<&Arc<Self>>) -> Result<(), Errno> {
        if let Some(to) = to {
            if !to.receives_from(self) {
                return Err(Errno::EPERM);
            }
            let mut connected = to.connected.lock();
            connected.retain(|other| other.strong_count() > 0 && !is(other, &self.endpoint));
            list::append(&mut connected, [Arc::downgrade(&self.endpoint)])?;
        }
        *self.peer.lock() = to.map(Arc::downgrade);
        Ok(())
    }

    fn receives_from(&self, other: &Arc<Self>) -> bool {
        self.peer.lock().as_ref().is_none_or(|peer| is(peer, other))
    }

    /// What it is connected to.
    ///
    /// # Errors
    /// [`Errno::ENOTCONN`]; [`Errno::ECONNREFUSED`] if that is gone, once: then it is not connected.
    pub fn peer(&self) -> Result<Arc<Self>, Errno> {
        let mut peer = self.peer.lock();
        let to = peer.as_ref().ok_or(Errno::ENOTCONN)?.upgrade();
        to.ok_or_else(|| {
            *peer = None;
            Errno::ECONNREFUSED
        })
    }

    /// Sends a datagram.
    ///
    /// # Errors
    /// [`Errno::EPIPE`] if this one sends or the other one receives no more; [`Errno::ECONNREFUSED`] if that is closed;
    /// [`Errno::EPERM`] if it receives from another socket; [`Errno::EAGAIN`], [`Errno::EINTR`], and as
    /// [`Packets::send`].
    pub fn send(
        self: &Arc<Self>,
        to: &Self,
        from: &mut dyn Source,
        how: Transfer,
        rights: &mut Option<Rights>,
    ) -> Result<usize, Errno> {
        loop {
            if !to.receives_from(self) {
                return Err(Errno::EPERM);
            }
            if self.has_shut(WRITE) || to.has_shut(READ) {
                return Err(Errno::EPIPE);
            }
            let address = self.address();
            let gone = |errno| if errno == Errno::EPIPE { Errno::ECONNREFUSED } else { errno };
            if let Some(sent) = to.inbox.send(from, &address, rights).map_err(gone)? {
                return Ok(sent);
            }
            let ready = || (to.inbox.poll(false, true) != 0 || to.has_shut(READ)).then_some(());
            to.senders.wait_until(how.nonblocking, how.deadline, ready)?;
        }
    }

    /// Receives a datagram, or 0 bytes if it receives no more.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`], [`Errno::EINTR`], [`Errno::EFAULT`].
    pub fn receive(&self, to: &mut dyn Sink, how: Transfer, beside: &mut Beside) -> Result<usize, Errno> {
        loop {
            if let Some(count) = self.inbox.receive(to, !how.peek, beside)? {
                self.tell_connected();
                return Ok(count);
            }
            if self.has_shut(READ) {
                return Ok(0);
            }
            let ready = || (self.inbox.poll(true, false) != 0 || self.has_shut(READ)).then_some(());
            self.endpoint.waiters.wait_until(how.nonblocking, how.deadline, ready)?;
        }
    }

    fn tell_connected(&self) {
        for endpoint in self.connected.lock().iter().filter_map(Weak::upgrade) {
            endpoint.waiters.notify();
        }
    }

    fn has_shut(&self, what: u32) -> bool {
        self.shut.load(Ordering::Acquire) & what == what
    }

    /// Receives or sends no more.
    pub fn shut(&self, what: u32) {
        self.shut.fetch_or(what, Ordering::AcqRel);
        self.endpoint.waiters.notify();
        self.senders.notify();
        self.tell_connected();
    }

    /// Its socket is closed.
    pub fn close(&self) {
        self.inbox.leave(true, false);
        self.inbox.clear();
        self.tell_connected();
    }

    /// What the socket is ready for.
    pub fn poll(&self) -> Events {
        let mut events = self.inbox.poll(true, false);
        if self.endpoint.has_error() {
            events |= POLLERR;
        }
        if self.has_shut(READ) {
            events |= READABLE | POLLRDHUP;
        }
        if self.has_shut(READ | WRITE) {
            events |= POLLHUP;
        }
        let peer = self.peer.lock().as_ref().and_then(Weak::upgrade);
        events | peer.map_or(WRITABLE, |peer| peer.inbox.poll(false, true))
    }
}

/// Whether a reference leads there.
fn is<T>(reference: &Weak<T>, to: &Arc<T>) -> bool {
    core::ptr::eq(reference.as_ptr(), Arc::as_ptr(to))
}
