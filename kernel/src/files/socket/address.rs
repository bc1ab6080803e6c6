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
pub enum Family {
    /// Paths and abstract names.
    Unix,
    /// Addresses and ports of IPv4.
    V4,
    /// Addresses and ports of IPv6.
    V6,
}

impl Family {
    /// The family with this number.
    ///
    /// # Errors
    /// [`Errno::EAFNOSUPPORT`].
    pub fn of(number: u32) -> Result<Self, Errno> {
        Ok(match number {
            abi::AF_UNIX => Self::Unix,
            abi::AF_INET => Self::V4,
            abi::AF_INET6 => Self::V6,
            _ => return Err(Errno::EAFNOSUPPORT),
        })
    }

    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            Self::Unix => abi::AF_UNIX,
            Self::V4 => abi::AF_INET,
            Self::V6 => abi::AF_INET6,
        }
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
        let (number, rest) = image.split_first_chunk().ok_or(Errno::EINVAL)?;
        let least = match family {
            Family::Unix => PATH + 1,
            Family::V4 => V4_BYTES,
            Family::V6 => V6_LEAST,
        };
        if image.len() < least && (family != Family::Unix || image.len() < PATH) {
            return Err(Errno::EINVAL);
        }
        if u32::from(u16::from_le_bytes(*number)) != family.number() {
            return Err(if family == Family::Unix { Errno::EINVAL } else { Errno::EAFNOSUPPORT });
        }
        let port = || u16::from_be_bytes([rest[0], rest[1]]);
        Ok(match family {
            Family::Unix => Self::Unix(unix_name(rest).into()),
            Family::V4 => {
                let bytes: [u8; 4] = rest[2..6].try_into().expect("four bytes");
                Self::Inet((bytes, port()).into())
            }
            Family::V6 => {
                let bytes: [u8; 16] = rest[6..22].try_into().expect("sixteen bytes");
                Self::Inet((Ipv6Addr::from(bytes).to_canonical(), port()).into())
            }
        })
    }

    /// The `struct sockaddr` that a socket of this family shows.
    pub fn encode(&self, family: Family) -> Vec<u8> {
        let mut image = (family.number() as u16).to_le_bytes().to_vec();
        match self {
            Self::Unix(name) => {
                image.extend_from_slice(name);
                // A path ends with a zero byte.
                let is_path = name.first().is_some_and(|first| *first != 0);
                image.extend(is_path.then_some(0));
            }
            Self::Inet(address) => {
                image.extend(address.port().to_be_bytes());
                match (address.ip(), family) {
                    (IpAddr::V4(ip), Family::V4 | Family::Unix) => image.extend(ip.octets()),
                    (IpAddr::V4(ip), Family::V6) => {
                        image.extend([0; 4]);
                        image.extend(ip.to_ipv6_mapped().octets());
                    }
                    (IpAddr::V6(ip), _) => {
                        image.extend([0; 4]);
                        image.extend(ip.octets());
                    }
                }
                image.resize(if family == Family::V6 { V6_BYTES } else { V4_BYTES }, 0);
            }
        }
        image
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
