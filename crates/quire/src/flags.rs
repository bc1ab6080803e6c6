//! Sets of properties that are either there or not.
#![forbid(unsafe_code)]

/// Gives a type around an unsigned integer, whose bits are properties, the methods of a set.
macro_rules! flag_set {
    ($set:ty) => {
        impl $set {
            /// None of them.
            pub const NONE: Self = Self(0);

            /// Whether there are none.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Whether all of `other` are there.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Those of either.
            #[inline]
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// Those that both have.
            #[inline]
            #[must_use]
            pub const fn intersection(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }

            /// Those that `other` has not.
            #[inline]
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// With those of `other` if `condition`.
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
