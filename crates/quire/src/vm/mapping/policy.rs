//! Which folio sizes anonymous memory may use: per order, globally and for each mapping.
//!
//! The choices are those of Linux's `/sys/kernel/mm/transparent_hugepage/hugepages-<size>kB/enabled`
//! (Documentation/admin-guide/mm/transhuge.rst): each order has its own setting, and a fault tries the
//! largest order that is allowed and fits first.
#![cfg_attr(not(test), forbid(unsafe_code))]

use core::fmt;

use crate::addr::Order;
use crate::limits::BLOCK_ORDER;

/// One more than the largest order.
const ORDERS: u32 = Order::GIGANTIC.get() as u32 + 1;
/// The orders up to a block's, and that of 1 GiB.
const ALL: u32 = ((2 << BLOCK_ORDER) - 1) | (1 << Order::GIGANTIC.get());

/// A set of folio orders: 0 (4 KiB) to 9 (2 MiB), and 18 (1 GiB).
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct OrderSet(u32);

/// Whether an order is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OrderPolicy {
    /// In no mapping.
    #[default]
    Never,
    /// In mappings that asked with `MADV_HUGEPAGE`.
    Madvise,
    /// In every mapping that did not refuse with `MADV_NOHUGEPAGE`.
    Always,
}

/// The machine-wide policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FolioPolicy {
    always: OrderSet,
    madvise: OrderSet,
    /// One 2 MiB leaf maps a folio of order 9 where the address allows it, rather than 512 leaves of 4 KiB.
    /// Folios of order 18 are mapped by one leaf, or not used.
    pub pmd_mapped: bool,
    /// Folios of order 18 are cleared and mapped piece by piece, the touched piece first.
    pub on_demand: bool,
}

/// What one mapping says to each order beyond the machine-wide policy. The default inherits every order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FolioOverride {
    allow: OrderSet,
    refuse: OrderSet,
}

impl OrderSet {
    /// No order.
    pub const EMPTY: Self = Self(0);
    /// Single frames only.
    pub const FRAME: Self = Self(1);

    /// The orders given.
    pub const fn of(orders: &[u8]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < orders.len() {
            bits |= 1 << orders[at];
            at += 1;
        }
        Self(bits & ALL)
    }

    /// Whether the order is in the set.
    #[inline]
    pub const fn contains(self, order: Order) -> bool {
        self.0 >> order.get() & 1 == 1
    }

    /// The largest order of the set that is at most `limit`.
    #[inline]
    pub const fn largest_up_to(self, limit: Order) -> Option<Order> {
        let bits = self.0 & ((2 << limit.get()) - 1);
        if bits == 0 { None } else { Order::new(bits.ilog2() as u8) }
    }

    const fn with(self, order: Order, member: bool) -> Self {
        let bit = (1 << order.get()) & ALL;
        if member { Self(self.0 | bit) } else { Self(self.0 & !bit) }
    }
}

impl FolioPolicy {
    /// Single frames only, everywhere.
    pub const FRAMES: Self =
        Self { always: OrderSet(1), madvise: OrderSet::EMPTY, pmd_mapped: true, on_demand: true };

    /// What Linux distributions ship: 2 MiB by one leaf for mappings that ask, 4 KiB otherwise.
    pub const LINUX: Self =
        Self { always: OrderSet(1), madvise: OrderSet(1 << BLOCK_ORDER), pmd_mapped: true, on_demand: true };

    /// One folio size for every mapping (and 4 KiB where it does not fit).
    pub const fn only(order: Order) -> Self {
        Self {
            always: OrderSet(1).with(order, true),
            madvise: OrderSet::EMPTY,
            pmd_mapped: true,
            on_demand: true,
        }
    }

    /// The policy with another choice for one order. Orders between 9 and 18 are ignored; order 0 is always
    /// allowed, as the last resort.
    #[must_use]
    pub const fn with(self, order: Order, policy: OrderPolicy) -> Self {
        let always = self.always.with(order, matches!(policy, OrderPolicy::Always));
        let madvise = self.madvise.with(order, matches!(policy, OrderPolicy::Madvise));
        Self { always: always.with(Order::FRAME, true), madvise, ..self }
    }

    /// The policy with another way to map folios of order 9.
    #[must_use]
    pub const fn with_pmd_mapped(self, pmd_mapped: bool) -> Self {
        Self { pmd_mapped, ..self }
    }

    /// The policy with another way to clear folios of order 18.
    #[must_use]
    pub const fn with_on_demand(self, on_demand: bool) -> Self {
        Self { on_demand, ..self }
    }

    /// The orders that a mapping may use. Order 0 is always among them.
    #[inline]
    pub const fn allowed(&self, advice: HugeAdvice, own: FolioOverride) -> OrderSet {
        let global = match advice {
            HugeAdvice::None => self.always.0,
            HugeAdvice::Huge => self.always.0 | self.madvise.0,
            HugeAdvice::NoHuge => return OrderSet(1),
        };
        OrderSet((global | own.allow.0) & !own.refuse.0 | 1)
    }

    /// The policy as one word, for a cell that faults read while another CPU sets it.
    pub const fn to_bits(self) -> u64 {
        let ways = self.pmd_mapped as u64 | (self.on_demand as u64) << 1;
        self.always.0 as u64 | (self.madvise.0 as u64) << ORDERS | ways << (2 * ORDERS)
    }

    /// The inverse of [`Self::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            always: OrderSet(bits as u32 & ALL | 1),
            madvise: OrderSet((bits >> ORDERS) as u32 & ALL),
            pmd_mapped: bits >> (2 * ORDERS) & 1 == 1,
            on_demand: bits >> (2 * ORDERS + 1) & 1 == 1,
        }
    }
}

impl Default for FolioPolicy {
    fn default() -> Self {
        Self::LINUX
    }
}

impl FolioOverride {
    /// The machine-wide policy applies to every order.
    pub const INHERIT: Self = Self { allow: OrderSet::EMPTY, refuse: OrderSet::EMPTY };

    /// What the mapping says to one order: `None` inherits the machine-wide policy.
    #[must_use]
    pub const fn with(self, order: Order, allowed: Option<bool>) -> Self {
        Self {
            allow: self.allow.with(order, matches!(allowed, Some(true))),
            refuse: self.refuse.with(order, matches!(allowed, Some(false))),
        }
    }

    /// Only these orders (and 4 KiB as the last resort), whatever the machine-wide policy says.
    pub const fn exactly(orders: OrderSet) -> Self {
        Self { allow: orders, refuse: OrderSet(ALL & !orders.0) }
    }
}

/// What `madvise` said about large folios in a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugeAdvice {
    /// Nothing.
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Huge,
    /// `MADV_NOHUGEPAGE`.
    NoHuge,
}

impl fmt::Debug for OrderSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..ORDERS).filter(|order| self.0 >> order & 1 == 1)).finish()
    }
}

#[cfg(test)]
mod tests;
