//! The error numbers of Linux (`errno(3)`). Quire's errors know theirs.

use core::fmt;

use quire::error::MmError;

/// Why a system call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(i32);

/// The numbers that this kernel itself uses. They are shown by name, others by number.
macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($number);)*
        }

        impl fmt::Display for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(number) => write!(f, "errno {number}"),
                }
            }
        }
    };
}

errnos! {
    /// Not permitted.
    EPERM = 1,
    /// No such file.
    ENOENT = 2,
    /// No such process.
    ESRCH = 3,
    /// A signal came first.
    EINTR = 4,
    /// A device failed.
    EIO = 5,
    /// No such device.
    ENXIO = 6,
    /// Too many arguments.
    E2BIG = 7,
    /// No program that the kernel can run.
    ENOEXEC = 8,
    /// No such descriptor, or not for this.
    EBADF = 9,
    /// No such child.
    ECHILD = 10,
    /// Not now.
    EAGAIN = 11,
    /// No memory.
    ENOMEM = 12,
    /// Not allowed.
    EACCES = 13,
    /// A bad address.
    EFAULT = 14,
    /// Not a block device.
    ENOTBLK = 15,
    /// In use.
    EBUSY = 16,
    /// It exists already.
    EEXIST = 17,
    /// On another file system.
    EXDEV = 18,
    /// The file cannot be mapped.
    ENODEV = 19,
    /// Not a directory.
    ENOTDIR = 20,
    /// A directory.
    EISDIR = 21,
    /// A bad argument.
    EINVAL = 22,
    /// No open file is left.
    ENFILE = 23,
    /// No free descriptor.
    EMFILE = 24,
    /// Not for this file.
    ENOTTY = 25,
    /// The program runs.
    ETXTBSY = 26,
    /// A file would be too large.
    EFBIG = 27,
    /// No space is left.
    ENOSPC = 28,
    /// The file has no position.
    ESPIPE = 29,
    /// Files cannot be written.
    EROFS = 30,
    /// Too many links.
    EMLINK = 31,
    /// No reader is left.
    EPIPE = 32,
    /// Out of the domain.
    EDOM = 33,
    /// Out of the range.
    ERANGE = 34,
    /// The caller has the lock already.
    EDEADLK = 35,
    /// A path that is too long.
    ENAMETOOLONG = 36,
    /// No memory for a lock.
    ENOLCK = 37,
    /// No such call.
    ENOSYS = 38,
    /// A directory with entries.
    ENOTEMPTY = 39,
    /// Too many links on the way.
    ELOOP = 40,
    /// A value that does not fit.
    EOVERFLOW = 75,
    /// Not a socket.
    ENOTSOCK = 88,
    /// The message is too long.
    EMSGSIZE = 90,
    /// The other socket is of another type.
    EPROTOTYPE = 91,
    /// No such option.
    ENOPROTOOPT = 92,
    /// No such protocol.
    EPROTONOSUPPORT = 93,
    /// No such type of socket.
    ESOCKTNOSUPPORT = 94,
    /// Not supported.
    EOPNOTSUPP = 95,
    /// No such family of addresses.
    EAFNOSUPPORT = 97,
    /// The address is in use.
    EADDRINUSE = 98,
    /// Not an address of this machine.
    EADDRNOTAVAIL = 99,
    /// No way leads to the address.
    ENETUNREACH = 101,
    /// The other side has thrown the connection away.
    ECONNRESET = 104,
    /// No memory for a message.
    ENOBUFS = 105,
    /// Connected already.
    EISCONN = 106,
    /// Not connected.
    ENOTCONN = 107,
    /// Too many files are on their way.
    ETOOMANYREFS = 109,
    /// Time is up.
    ETIMEDOUT = 110,
    /// Nothing listens there.
    ECONNREFUSED = 111,
    /// It is under way already.
    EALREADY = 114,
    /// It is under way.
    EINPROGRESS = 115,
    /// A name leads to something else by now.
    ESTALE = 116,
}

impl Errno {
    /// Its number.
    pub const fn number(self) -> i32 {
        self.0
    }

    /// The error with this number.
    pub const fn of(number: i32) -> Self {
        Self(number)
    }

    /// What a program gets in RAX: the negated number.
    pub fn as_result(self) -> u64 {
        i64::from(-self.0) as u64
    }
}

impl From<MmError> for Errno {
    fn from(error: MmError) -> Self {
        Self(error.errno())
    }
}
