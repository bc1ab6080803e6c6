//! The options of a socket that are numbers (`socket(7)`, `tcp(7)`, `ip(7)`, `ipv6(7)`).
//!
//! Most have no effect where no packets are: they are kept, so that programs get back what they set.

use linux_raw_sys::net as abi;
use spin::Mutex;

use super::address::Family;
use crate::errno::Errno;

/// What values an option takes.
#[derive(Clone, Copy)]
enum Values {
    /// Off, or on by any number.
    Flag,
    /// From the first to the second.
    Range(u32, u32),
    /// A number of bytes, doubled as Linux does it, up to the most of Linux (`net.core.wmem_max`).
    Buffer,
}

/// `net.core.wmem_default` and `wmem_max`.
const BUFFER: u32 = 212_992;
const LEAST_BUFFER: u32 = 2304;
const SOCKET: u32 = abi::SOL_SOCKET;
const TCP: u32 = abi::SOL_TCP;
const IP: u32 = abi::SOL_IP;
const IPV6: u32 = abi::SOL_IPV6;

/// Level, name, values, and the value at first.
const KEPT: [(u32, u32, Values, u32); 25] = [
    (SOCKET, abi::SO_REUSEADDR, Values::Flag, 0),
    (IPV6, abi::IPV6_V6ONLY, Values::Flag, 0),
    (SOCKET, abi::SO_KEEPALIVE, Values::Flag, 0),
    (SOCKET, abi::SO_BROADCAST, Values::Flag, 0),
    (SOCKET, abi::SO_OOBINLINE, Values::Flag, 0),
    (SOCKET, abi::SO_DONTROUTE, Values::Flag, 0),
    (SOCKET, abi::SO_TIMESTAMP, Values::Flag, 0),
    (SOCKET, abi::SO_PRIORITY, Values::Range(0, 6), 0),
    (SOCKET, abi::SO_RCVLOWAT, Values::Range(0, i32::MAX as u32), 1),
    (SOCKET, abi::SO_SNDBUF, Values::Buffer, BUFFER),
    (SOCKET, abi::SO_RCVBUF, Values::Buffer, BUFFER),
    (TCP, abi::TCP_NODELAY, Values::Flag, 0),
    (TCP, abi::TCP_CORK, Values::Flag, 0),
    (TCP, abi::TCP_QUICKACK, Values::Flag, 1),
    (TCP, abi::TCP_KEEPIDLE, Values::Range(1, 32767), 7200),
    (TCP, abi::TCP_KEEPINTVL, Values::Range(1, 32767), 75),
    (TCP, abi::TCP_KEEPCNT, Values::Range(1, 127), 9),
    (TCP, abi::TCP_SYNCNT, Values::Range(1, 127), 6),
    (TCP, abi::TCP_DEFER_ACCEPT, Values::Range(0, i32::MAX as u32), 0),
    (TCP, abi::TCP_USER_TIMEOUT, Values::Range(0, i32::MAX as u32), 0),
    (TCP, abi::TCP_MAXSEG, Values::Range(88, 32767), 536),
    (IP, abi::IP_TOS, Values::Range(0, 255), 0),
    (IP, abi::IP_TTL, Values::Range(1, 255), 64),
    (IPV6, abi::IPV6_TCLASS, Values::Range(0, 255), 0),
    (IPV6, abi::IPV6_UNICAST_HOPS, Values::Range(0, 255), 64),
];

/// The options of a socket.
pub struct Options {
    values: Mutex<[u32; KEPT.len()]>,
}

impl Options {
    /// Those of a new socket.
    pub fn new() -> Self {
        Self { values: Mutex::new(KEPT.map(|(.., first)| first)) }
    }

    /// Those of a socket that was accepted by one with these.
    pub fn inherited(&self) -> Self {
        Self { values: Mutex::new(*self.values.lock()) }
    }

    /// Whether `SO_REUSEADDR` is set.
    pub fn reuses_address(&self) -> bool {
        self.values.lock()[0] != 0
    }

    /// Whether `IPV6_V6ONLY` is set.
    pub fn is_only_v6(&self) -> bool {
        self.values.lock()[1] != 0
    }

    /// The value of an option.
    ///
    /// # Errors
    /// [`Errno::ENOPROTOOPT`] for one that is not known.
    pub fn get(&self, family: Family, level: u32, name: u32) -> Result<u32, Errno> {
        Ok(self.values.lock()[place(family, level, name)?])
    }

    /// Sets an option.
    ///
    /// # Errors
    /// As [`Self::get`]; [`Errno::EINVAL`] for a value that it cannot have.
    pub fn set(&self, family: Family, level: u32, name: u32, value: u32) -> Result<(), Errno> {
        let place = place(family, level, name)?;
        self.values.lock()[place] = match KEPT[place].2 {
            Values::Flag => u32::from(value != 0),
            Values::Range(first, last) if (first..=last).contains(&value) => value,
            Values::Range(..) => return Err(Errno::EINVAL),
            Values::Buffer => (value.min(BUFFER) * 2).max(LEAST_BUFFER),
        };
        Ok(())
    }
}

fn place(family: Family, level: u32, name: u32) -> Result<usize, Errno> {
    match level {
        SOCKET => {}
        _ if family == Family::Unix => return Err(Errno::EOPNOTSUPP),
        IPV6 if family == Family::V4 => return Err(Errno::ENOPROTOOPT),
        _ => {}
    }
    KEPT.iter().position(|kept| (kept.0, kept.1) == (level, name)).ok_or(Errno::ENOPROTOOPT)
}
