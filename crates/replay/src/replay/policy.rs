//! Parses folio sizes and memory sizes of the command line.

use quire::addr::Order;
use quire::vm::{FolioPolicy, policy::OrderPolicy};

use crate::output::parse_bytes;

/// The folio sizes that can be chosen, small to large: name and order. 8 KiB is left out as in Linux, where no
/// anonymous folio has two pages.
const SIZES: [(&str, u8); 9] = [
    ("4K", 0),
    ("16K", 2),
    ("32K", 3),
    ("64K", 4),
    ("128K", 5),
    ("256K", 6),
    ("512K", 7),
    ("1M", 8),
    ("2M", 9),
];

/// The folio sizes of anonymous memory: a fault takes the largest that fits, at last 4 KiB; as Linux with these
/// sizes on `always`, and others on `madvise` for memory that asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FolioSet {
    /// One bit for each order above 0.
    always: u16,
    madvise: u16,
}

/// The value of `--folio`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FolioChoice {
    One(FolioSet),
    /// Every size in turn.
    Sweep,
}

impl FolioSet {
    /// Single frames only.
    pub const FRAMES: Self = Self { always: 0, madvise: 0 };

    /// All sizes.
    pub fn all() -> Self {
        Self::each().fold(Self::FRAMES, Self::with)
    }

    /// Each size alone, small to large.
    pub fn each() -> impl Iterator<Item = Self> {
        SIZES.into_iter().map(|(_, order)| Self::FRAMES.and(order))
    }

    /// The set with one more order.
    #[must_use]
    pub const fn and(self, order: u8) -> Self {
        Self { always: self.always | 1 << order & !1, ..self }
    }

    /// The set with these orders for memory that asks, as far as it has not got them already.
    #[must_use]
    pub const fn on_request(self, orders: Self) -> Self {
        Self { madvise: orders.always & !self.always, ..self }
    }

    /// The orders for memory that asks and for no other.
    pub const fn requested(self) -> Self {
        Self { always: self.madvise, madvise: 0 }
    }

    /// The orders of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self { always: self.always | other.always, madvise: self.madvise | other.madvise }
    }

    /// Whether the other set has all its orders for all memory.
    pub const fn is_within(self, other: Self) -> bool {
        self.always & !other.always == 0
    }

    /// The orders for all memory, without 4 KiB, small to large.
    pub fn orders(self) -> impl Iterator<Item = u8> {
        (1..16).filter(move |order| self.always >> order & 1 == 1)
    }

    /// The sizes for all memory in KiB, without 4 KiB.
    pub fn kib(self) -> impl Iterator<Item = usize> {
        self.orders().map(|order| 4 << order)
    }

    /// The sizes for all memory, and then those for memory that asks alone.
    pub(crate) fn given_kib(self) -> impl Iterator<Item = usize> {
        self.kib().chain(self.requested().kib())
    }

    /// `4K`, `64K`, `64K+2M`, `all`; behind a comma what memory gets that asks.
    pub fn name(self) -> String {
        let names: Vec<String> = self.orders().map(order_name).collect();
        let name = match names.len() {
            0 => order_name(0),
            many if many == SIZES.len() - 1 => "all".to_owned(),
            _ => names.join("+"),
        };
        match self.madvise {
            0 => name,
            _ => format!("{name}, {} by madvise", self.requested().name()),
        }
    }

    /// The set with this [name](Self::name).
    ///
    /// # Errors
    /// Sizes that cannot be chosen.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        match name.strip_suffix(" by madvise").and_then(|both| both.rsplit_once(", ")) {
            Some((always, asking)) => Ok(parse_set(always)?.on_request(parse_set(asking)?)),
            None => parse_set(name),
        }
    }

    /// The orders for all memory alone.
    #[must_use]
    pub const fn unrequested(self) -> Self {
        Self { madvise: 0, ..self }
    }

    /// Whether memory gets this order, if it asks or does not.
    pub(crate) const fn gives(self, order: Order, asks: bool) -> bool {
        let orders = if asks { self.always | self.madvise } else { self.always };
        orders >> order.get() & 1 == 1
    }

    /// The largest order, asked for or not.
    pub(super) const fn largest(self) -> Order {
        let orders = self.always | self.madvise | 1;
        match Order::new(orders.ilog2() as u8) {
            Some(order) => order,
            None => Order::FRAME,
        }
    }

    pub(super) fn policy(self) -> FolioPolicy {
        let set = |orders: Self, policy: FolioPolicy, choice| {
            orders.orders().filter_map(Order::new).fold(policy, |policy, order| policy.with(order, choice))
        };
        let always = set(self, FolioPolicy::FRAMES, OrderPolicy::Always);
        set(self.requested(), always, OrderPolicy::Madvise)
    }
}

/// The name of the size with this order.
pub(crate) fn order_name(order: u8) -> String {
    let kib = 4u64 << order;
    if kib < 1024 { format!("{kib}K") } else { format!("{}M", kib / 1024) }
}

/// `4K` to `2M`, several of them between commas or plus signs, or `all`; in either case of letters.
pub(crate) fn parse_set(text: &str) -> Result<FolioSet, String> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(FolioSet::all());
    }
    let with = |set: FolioSet, name: &str| Ok(set.with(parse_size(name.trim())?));
    text.split([',', '+'])
        .try_fold(FolioSet::FRAMES, with)
        .map_err(|error: String| format!("{error}, several of them between commas, or all"))
}

/// `4K` to `2M`, in either case of letters.
pub(crate) fn parse_size(text: &str) -> Result<FolioSet, String> {
    let size = SIZES.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    size.map(|(_, order)| FolioSet::FRAMES.and(order)).ok_or_else(|| {
        let names: Vec<&str> = SIZES.iter().map(|(name, _)| *name).collect();
        format!("no such folio size; choose {}", names.join(", "))
    })
}

/// A set of sizes, or `sweep`; in either case of letters.
pub(super) fn parse_folio(text: &str) -> Result<FolioChoice, String> {
    if text.eq_ignore_ascii_case("sweep") {
        return Ok(FolioChoice::Sweep);
    }
    parse_set(text).map(FolioChoice::One).map_err(|error| format!("{error}, or sweep"))
}

/// Parses bytes as [`parse_bytes`], rounded up to 2 MiB.
pub(super) fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?.checked_next_multiple_of(2 << 20);
    match bytes {
        Some(bytes) if (16 << 20..=quire::limits::MAX_PHYS_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err("a machine has 16M to 64T".to_owned()),
    }
}

/// Bytes in the largest unit that leaves no fraction.
pub(super) fn exact_bytes(bytes: u64) -> String {
    let (mut value, mut units) = (bytes, ["", "K", "M", "G", "T"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while value >= 1024 && value.is_multiple_of(1024) {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1024, next);
    }
    format!("{value}{unit}")
}

#[cfg(test)]
mod tests;
