//! Handles: copyable references to an address space, or to [`MmShared`](crate::vm::MmShared). Each type has
//! one duty.

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident of $on:ident) => {
        $(#[$doc])*
        pub(crate) struct $name<'a, 'm, P: $crate::platform::Platform>(pub(in crate::vm) &'a $on<'m, P>);

        impl<'a, 'm, P: $crate::platform::Platform> $name<'a, 'm, P> {
            #[inline]
            pub(crate) const fn of(on: &'a $on<'m, P>) -> Self {
                Self(on)
            }
        }

        impl<P: $crate::platform::Platform> Clone for $name<'_, '_, P> {
            #[inline]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<P: $crate::platform::Platform> Copy for $name<'_, '_, P> {}

        impl<'m, P: $crate::platform::Platform> core::ops::Deref for $name<'_, 'm, P> {
            type Target = $on<'m, P>;

            #[inline]
            fn deref(&self) -> &Self::Target {
                self.0
            }
        }
    };
}

pub(super) use handle;
