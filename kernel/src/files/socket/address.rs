//! Addresses of sockets, as programs give and get them (`unix(7)`, `ip(7)`, `ipv6(7)`).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linux_raw_sys::net as abi;

use crate::errno::Errno;

/// The largest address: `struct sockaddr_un`.
pub const MOST_BYTES: usize = 110;
/// Where the path of a unix socket begins.
const PATH: usize = 2;
const V4_BYTES: usize = size_of::<abi::sockaddr_in>();
const V6_BYTES: usize = 28;
/// The part of a `struct sockaddr_in6` that an address must have.
const V6_LEAST: usize = 24;

/// What the addresses of a socket are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Family {
    /// Paths and abstract names.
    Unix = abi::AF_UNIX,
    /// Addresses and ports of IPv4.
    V4 = abi::AF_INET,
    /// Addresses and ports of IPv6.
    V6 = abi::AF_INET6,
}

impl Family {
    /// The family with this number.
    ///
    /// # Errors
    /// [`Errno::EAFNOSUPPORT`].
    pub fn of(number: u32) -> Result<Self, Errno> {
        let all = [Self::Unix, Self::V4, Self::V6];
        all.into_iter().find(|family| family.number() == number).ok_or(Errno::EAFNOSUPPORT)
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self as u32
    }
}

/// An address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A path, or an abstract name, which begins with a zero byte. Empty for none.
    Unix(Arc<[u8]>),
    /// An address of IPv4, also where a program sees it as one of IPv6, or of IPv6; and a port.
    Inet(SocketAddr),
}

impl Address {
    /// The address of a socket that has none.
    pub fn none(family: Family) -> Self {
        match family {
            Family::Unix => Self::Unix(Arc::from(*b"")),
            Family::V4 => Self::Inet((Ipv4Addr::UNSPECIFIED, 0).into()),
            Family::V6 => Self::Inet((Ipv6Addr::UNSPECIFIED, 0).into()),
        }
    }

    /// Reads a `struct sockaddr` for a socket of this family.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for a length that cannot be; [`Errno::EAFNOSUPPORT`] for another family.
    pub fn decode(family: Family, image: &[u8]) -> Result<Self, Errno> {
        let (least, wrong) = match family {
            Family::Unix => (PATH, Errno::EINVAL),
            Family::V4 => (V4_BYTES, Errno::EAFNOSUPPORT),
            Family::V6 => (V6_LEAST, Errno::EAFNOSUPPORT),
        };
        if image.len() < least {
            return Err(Errno::EINVAL);
        }
        let (number, rest) = image.split_at(PATH);
        if number != (family.number() as u16).to_le_bytes() {
            return Err(wrong);
        }
        let ip = match family {
            Family::Unix => return Ok(Self::Unix(unix_name(rest).into())),
            Family::V4 => IpAddr::from(*rest[2..].first_chunk::<4>().ok_or(Errno::EINVAL)?),
            Family::V6 => IpAddr::from(*rest[6..].first_chunk::<16>().ok_or(Errno::EINVAL)?).to_canonical(),
        };
        Ok(Self::Inet((ip, u16::from_be_bytes([rest[0], rest[1]])).into()))
    }

    /// The `struct sockaddr` that a socket of this family shows.
    pub fn encode(&self, family: Family) -> Vec<u8> {
        let mut image = (family.number() as u16).to_le_bytes().to_vec();
        match self {
            Self::Unix(name) => {
                image.extend_from_slice(name);
                // A path ends with a zero byte.
                image.extend(name.first().is_some_and(|first| *first != 0).then_some(0));
            }
            Self::Inet(address) => {
                image.extend(address.port().to_be_bytes());
                match (address.ip(), family) {
                    (IpAddr::V4(ip), Family::V4) => image.extend(ip.octets()),
                    (ip, _) => {
                        image.extend([0; 4]);
                        image.extend(in_v6(ip).octets());
                    }
                }
                image.resize(if family == Family::V6 { V6_BYTES } else { V4_BYTES }, 0);
            }
        }
        image
    }
}

/// An address as a socket of IPv6 shows it.
fn in_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// A path up to a zero byte, or all of an abstract name.
fn unix_name(bytes: &[u8]) -> &[u8] {
    let end = if bytes.first() == Some(&0) { None } else { bytes.iter().position(|byte| *byte == 0) };
    &bytes[..end.unwrap_or(bytes.len())]
}

/// Whether an address is one of this machine, which has only itself to talk to.
pub fn is_local(address: SocketAddr) -> bool {
    address.ip().is_loopback() || address.ip().is_unspecified()
}

/// The address to which a connection really goes.
pub fn reached(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
