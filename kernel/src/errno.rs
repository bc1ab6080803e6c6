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
    /// No program that the kernel can run.
    ENOEXEC = 8,
    /// No such descriptor, or not for this.
    EBADF = 9,
    /// A bad address.
    EFAULT = 14,
    /// The file cannot be mapped.
    ENODEV = 19,
    /// A bad argument.
    EINVAL = 22,
    /// No free descriptor.
    EMFILE = 24,
    /// Files cannot be written.
    EROFS = 30,
    /// A path that is too long.
    ENAMETOOLONG = 36,
    /// No such call.
    ENOSYS = 38,
}

impl Errno {
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
