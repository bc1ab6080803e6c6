//! A socket that listens: the connections that are not accepted yet.

use alloc::collections::VecDeque;
use alloc::sync::Arc;

use crate::sync::Mutex;

use super::SocketType;
use super::address::{Address, Family};
use super::connection::{Connection, Endpoint, Maker, Side};
use crate::errno::Errno;

/// The most connections that wait to be accepted, as in Linux (`net.core.somaxconn`).
pub const MOST_WAITING: u32 = 4096;

/// A listener.
pub struct Listener {
    /// The family and the type of its socket.
    pub kind: (Family, SocketType),
    /// Its endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Its address, which accepted sockets of unix have too.
    address: Address,
    maker: Maker,
    queue: Mutex<Queue>,
}

/// Connections in the order in which they were asked for. Those that are too many are not established yet.
struct Queue {
    waiting: VecDeque<Connection>,
    most: usize,
    open: bool,
}

impl Listener {
    /// A listener of this process without connections.
    pub fn new(
        maker: Maker,
        kind: (Family, SocketType),
        endpoint: &Arc<Endpoint>,
        address: Address,
    ) -> Arc<Self> {
        let queue = Mutex::new(Queue { waiting: VecDeque::new(), most: 0, open: true });
        Arc::new(Self { kind, endpoint: endpoint.clone(), address, maker, queue })
    }

    /// Says how many connections may wait. As in Linux, one more may.
    pub fn set_backlog(&self, backlog: u32) {
        self.queue.lock().most = backlog.min(MOST_WAITING) as usize + 1;
    }

    /// Asks for a connection from a side to the address `reached`.
    ///
    /// # Errors
    /// [`Errno::ECONNREFUSED`] if it was closed; [`Errno::EAGAIN`] if it is full and `now` is set;
    /// [`Errno::ENOMEM`].
    pub fn connect(&self, from: Side, reached: Option<Address>, now: bool) -> Result<Connection, Errno> {
        let mut queue = self.queue.lock();
        if !queue.open {
            return Err(Errno::ECONNREFUSED);
        }
        // Those that have given up make room.
        queue.waiting.retain(|other| other.is_established() || !other.is_orphaned());
        let room = queue.waiting.len() < queue.most;
        if now && !room {
            return Err(Errno::EAGAIN);
        }
        queue.waiting.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let address = reached.unwrap_or_else(|| self.address.clone());
        let own = Side::new(self.maker, &Arc::default(), address);
        let [near, far] = Connection::pair(self.kind, [from, own], room);
        queue.waiting.push_back(far);
        drop(queue);
        self.endpoint.waiters.notify();
        Ok(near)
    }

    /// Takes the oldest connection, if there is one.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if the listener was closed.
    pub fn accept(&self) -> Result<Option<Connection>, Errno> {
        let mut queue = self.queue.lock();
        if !queue.open {
            return Err(Errno::EINVAL);
        }
        let taken = queue.waiting.pop_front();
        let most = queue.most;
        queue.waiting.iter().take(most).filter(|next| !next.is_established()).for_each(Connection::establish);
        Ok(taken)
    }

    /// Whether [`Self::accept`] would not wait.
    pub fn is_ready(&self) -> bool {
        let queue = self.queue.lock();
        !queue.waiting.is_empty() || !queue.open
    }

    /// Accepts none any more, and throws away those that wait.
    pub fn close(&self) {
        let mut queue = self.queue.lock();
        queue.open = false;
        let waiting = core::mem::take(&mut queue.waiting);
        drop(queue);
        waiting.iter().for_each(Connection::reset);
        self.endpoint.waiters.notify();
    }
}
