//! A connection: two pipes, one for each direction, or two queues of packets.
//!
//! ```text
//! Socket ── Connection (side 0) ──┐                          ┌── Connection (side 1) ── Socket
//!                                 └─► Link ── pipes[1] ──►  ◄┘
//!                                          ◄── pipes[0] ──
//! ```
//!
//! Side `n` reads `pipes[n]`. Each side has an [`Endpoint`], which is there before the connection is.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sync::Mutex;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLRDHUP};

use super::SocketType;
use super::address::{Address, Family};
use super::direction::Direction;
use super::registry::Port;
use crate::errno::Errno;
use crate::files::events::{Events, READABLE, WRITABLE, Waiters};
use crate::files::rights::Traffic;
use crate::task::{credentials, sched};

/// What a socket and its connection share: what waits, and the error to report next.
#[derive(Default)]
pub struct Endpoint {
    /// What waits for the socket.
    pub waiters: Arc<Waiters>,
    error: Mutex<Option<Errno>>,
}

impl Endpoint {
    /// Takes the error (`SO_ERROR`).
    pub fn take_error(&self) -> Option<Errno> {
        self.error.lock().take()
    }

    /// The error that the next call reports.
    pub fn error(&self) -> Option<Errno> {
        *self.error.lock()
    }

    /// Whether there is one.
    pub fn has_error(&self) -> bool {
        self.error().is_some()
    }

    /// Reports an error.
    pub fn fail(&self, errno: Errno) {
        *self.error.lock() = Some(errno);
        self.waiters.notify();
    }
}

/// No more reads by this side; no more writes.
pub const READ: u32 = 1;
/// No more writes by this side.
pub const WRITE: u32 = 2;
/// What the other side writes is not wanted.
const DEAF: u32 = 4;
/// This side knows that the other one is closed: it has sent something that was answered by a reset.
const TOLD: u32 = 8;

/// The process that made a side, and the user and the group as which it did (`SO_PEERCRED`).
#[derive(Clone, Copy)]
pub struct Maker {
    /// The process.
    pub process: u32,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

impl Maker {
    /// The running process.
    pub fn running() -> Self {
        let (user, group) = credentials::owner();
        Self { process: sched::current_ref().process.id, user, group }
    }
}

/// What is known of a side.
pub struct Side {
    /// Its endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Its address.
    pub address: Address,
    /// What made it.
    pub maker: Maker,
    shut: AtomicU32,
    /// Its port, if it was given one to connect.
    _port: Option<Port>,
}

impl Side {
    /// A side of this process.
    pub fn new(maker: Maker, endpoint: &Arc<Endpoint>, address: Address) -> Self {
        Self { endpoint: endpoint.clone(), address, maker, shut: AtomicU32::new(0), _port: None }
    }

    /// The same with a port that it keeps.
    pub fn with_port(self, port: Option<Port>) -> Self {
        Self { _port: port, ..self }
    }
}

/// What both sides share.
struct Link {
    family: Family,
    sides: [Side; 2],
    directions: [Direction; 2],
    /// The listener has room for it.
    established: AtomicBool,
    traffic: Arc<Traffic>,
}

/// One side of a connection. Closes it when dropped.
pub struct Connection {
    link: Arc<Link>,
    side: usize,
}

impl Connection {
    /// Connects two sides.
    pub fn pair((family, kind): (Family, SocketType), sides: [Side; 2], established: bool) -> [Self; 2] {
        let [one, other] = [0, 1].map(|side: usize| &sides[side].endpoint.waiters);
        let directions = [Direction::between(kind, one, other), Direction::between(kind, other, one)];
        let established = AtomicBool::new(established);
        let link = Arc::new(Link { family, sides, directions, established, traffic: Arc::default() });
        [0, 1].map(|side| Self { link: link.clone(), side })
    }

    /// This side.
    pub fn near(&self) -> &Side {
        &self.link.sides[self.side]
    }

    /// The other side.
    pub fn far(&self) -> &Side {
        &self.link.sides[1 - self.side]
    }

    /// Whether the other side is a socket, or will be one soon.
    pub fn is_established(&self) -> bool {
        self.link.established.load(Ordering::Acquire)
    }

    /// The listener has room for it now.
    pub fn establish(&self) {
        self.link.established.store(true, Ordering::Release);
        self.far().endpoint.waiters.notify();
    }

    /// The files that it carries, and how often it is carried.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.link.traffic
    }

    /// What comes from the other side.
    pub fn input(&self) -> &Direction {
        &self.link.directions[self.side]
    }

    /// What goes to the other side.
    pub fn output(&self) -> &Direction {
        &self.link.directions[1 - self.side]
    }

    /// Whether this side has shut all of these down.
    pub fn has_shut(&self, what: u32) -> bool {
        self.near().shut.load(Ordering::Acquire) & what == what
    }

    /// Whether the other side is closed.
    pub fn is_orphaned(&self) -> bool {
        self.far().shut.load(Ordering::Acquire) & DEAF != 0
    }

    /// Whether it is one of TCP.
    pub fn is_tcp(&self) -> bool {
        self.link.family != Family::Unix
    }

    /// Whether bytes that nothing reads are sent in vain without an error: over TCP the first ones are.
    pub fn sends_in_vain(&self) -> bool {
        let vain = self.is_tcp() && !self.has_shut(TOLD);
        self.shut_down(TOLD);
        vain
    }

    /// Ends reading, writing or both (`shutdown(2)`). Over TCP the other side does not learn that nothing is read.
    pub fn shut(&self, what: u32) {
        let deaf = if what & READ != 0 && self.link.family == Family::Unix { DEAF } else { 0 };
        self.shut_down(what | deaf);
    }

    fn shut_down(&self, what: u32) {
        let new = what & !self.near().shut.fetch_or(what, Ordering::AcqRel);
        if new & WRITE != 0 {
            self.output().leave(false, true);
        }
        if new & DEAF != 0 {
            self.input().leave(true, false);
        }
        self.near().endpoint.waiters.notify();
    }

    /// Throws it away: the other side gets an error instead of the end.
    pub fn reset(&self) {
        let refused = !self.is_established();
        self.far().endpoint.fail(if refused { Errno::ECONNREFUSED } else { Errno::ECONNRESET });
    }

    /// What this side is ready for.
    pub fn poll(&self) -> Events {
        let failed = if self.near().endpoint.has_error() { POLLERR | READABLE } else { 0 };
        if !self.is_established() {
            return if failed == 0 { 0 } else { failed | WRITABLE | POLLHUP };
        }
        let input = self.input().poll(true, false);
        let ended = input & POLLHUP != 0 || self.has_shut(READ);
        let told = self.link.family == Family::Unix || self.has_shut(TOLD);
        let mute = self.has_shut(WRITE) || told && self.is_orphaned();
        let output = self.output().poll(false, true);
        let mut events = failed | input & READABLE;
        if ended {
            events |= READABLE | POLLRDHUP;
        }
        if ended && mute {
            events |= POLLHUP;
        }
        if mute || output != 0 {
            events |= WRITABLE;
        }
        events
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Bytes that were not read are lost, which the other side learns.
        if !self.input().is_empty() {
            self.reset();
        }
        self.shut_down(READ | WRITE | DEAF);
        // Files among them are closed, although the other side is still there.
        self.input().clear();
    }
}
