//! The sizes of huge pages.
#![forbid(unsafe_code)]

use crate::addr::{Order, PageSize};

/// The size of a huge page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HugeSize {
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
    Size1G,
}

impl HugeSize {
    /// Every size, the smaller one first.
    pub const ALL: [Self; 2] = [Self::Size2M, Self::Size1G];

    /// The order of a folio of this size.
    #[inline]
    pub const fn order(self) -> Order {
        match self {
            Self::Size2M => Order::BLOCK,
            Self::Size1G => Order::GIGANTIC,
        }
    }

    #[inline]
    pub(crate) const fn of_order(order: Order) -> Option<Self> {
        match order {
            Order::BLOCK => Some(Self::Size2M),
            Order::GIGANTIC => Some(Self::Size1G),
            _ => None,
        }
    }

    /// The leaf that maps one.
    #[inline]
    pub const fn leaf(self) -> PageSize {
        match self {
            Self::Size2M => PageSize::Size2M,
            Self::Size1G => PageSize::Size1G,
        }
    }

    /// Bytes of a page.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.leaf().bytes()
    }
}
