//! Sets of flags.
#![forbid(unsafe_code)]

use core::fmt;

/// Writes a set as the crate `bitflags` does: `Protection(READ | WRITE)`, unnamed bits in hexadecimal at the
/// end, and `Protection(0x0)` for the empty set.
pub(crate) fn write_names(
    f: &mut fmt::Formatter<'_>,
    set: &str,
    bits: u64,
    names: &[(&str, u64)],
) -> fmt::Result {
    write!(f, "{set}(")?;
    let (mut rest, mut between) = (bits, "");
    for &(name, bit) in names.iter().filter(|&&(_, bit)| bits & bit == bit) {
        write!(f, "{between}{name}")?;
        (rest, between) = (rest & !bit, " | ");
    }
    if rest != 0 || bits == 0 {
        write!(f, "{between}{rest:#x}")?;
    }
    f.write_str(")")
}

/// Implements `Debug` for a type around an unsigned integer, naming these constants.
macro_rules! flag_names {
    ($set:ident: $($name:ident),* $(,)?) => {
        impl core::fmt::Debug for $set {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let names = [$((stringify!($name), u64::from(Self::$name.0))),*];
                $crate::flags::write_names(f, stringify!($set), u64::from(self.0), &names)
            }
        }
    };
}
pub(crate) use flag_names;

/// Gives such a type the methods of a set as well.
macro_rules! flag_set {
    ($set:ident: $($names:tt)*) => {
        $crate::flags::flag_names!($set: $($names)*);

        impl $set {
            /// The empty set.
            pub const NONE: Self = Self(0);

            /// Whether the set is empty.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Whether the set has all flags of `other`.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The flags of either set.
            #[inline]
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The flags of both sets.
            #[inline]
            #[must_use]
            pub const fn intersection(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }

            /// The flags that `other` does not have.
            #[inline]
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// The set with the flags of `other` if `condition`.
            #[inline]
            #[must_use]
            pub const fn with_if(self, other: Self, condition: bool) -> Self {
                if condition { self.union(other) } else { self }
            }
        }

        impl core::ops::BitOr for $set {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }
    };
}
pub(crate) use flag_set;

#[cfg(test)]
mod tests {
    use std::format;

    /// A set with a constant of two bits.
    #[derive(Clone, Copy)]
    struct Some(u8);

    flag_names!(Some: ONE, TWO);

    impl Some {
        const ONE: Self = Self(1);
        const TWO: Self = Self(6);
    }

    #[test]
    fn sets_are_shown_by_name() {
        for (bits, shown) in [
            (0, "Some(0x0)"),
            (1, "Some(ONE)"),
            (7, "Some(ONE | TWO)"),
            (2, "Some(0x2)"),
            (0x81, "Some(ONE | 0x80)"),
        ] {
            assert_eq!(format!("{:?}", Some(bits)), shown);
        }
    }
}
