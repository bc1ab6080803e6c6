//! Parses folio sizes and memory sizes of the command line.

use quire::addr::Order;
use quire::vm::FolioPolicy;

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

/// One folio size for all anonymous memory, with 4 KiB where it does not fit; as Linux with only this size on
/// `always`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FolioSize {
    name: &'static str,
    order: Order,
}

/// The value of `--folio`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FolioChoice {
    One(FolioSize),
    /// Every size in turn.
    Sweep,
}

impl FolioSize {
    /// Single pages.
    pub(crate) const PAGE: Self = Self { name: SIZES[0].0, order: Order::FRAME };

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        SIZES.into_iter().filter_map(|(name, order)| Some(Self { name, order: Order::new(order)? }))
    }

    pub(crate) const fn name(self) -> &'static str {
        self.name
    }

    pub(super) const fn order(self) -> Order {
        self.order
    }

    /// The size in KiB.
    pub(crate) const fn kib(self) -> usize {
        self.order.bytes() as usize / 1024
    }

    pub(super) const fn policy(self) -> FolioPolicy {
        FolioPolicy::only(self.order)
    }
}

/// The name of the size with this order.
pub(super) fn order_name(order: u8) -> String {
    let kib = 4u64 << order;
    if kib < 1024 { format!("{kib}K") } else { format!("{}M", kib / 1024) }
}

/// `4K` to `2M`, or `sweep`; in either case of letters.
pub(super) fn parse_folio(text: &str) -> Result<FolioChoice, String> {
    if text.eq_ignore_ascii_case("sweep") {
        return Ok(FolioChoice::Sweep);
    }
    parse_size(text).map(FolioChoice::One).map_err(|error| format!("{error} or sweep"))
}

/// `4K` to `2M`, in either case of letters.
pub(crate) fn parse_size(text: &str) -> Result<FolioSize, String> {
    FolioSize::all().find(|size| size.name.eq_ignore_ascii_case(text)).ok_or_else(|| {
        let names: Vec<&str> = SIZES.iter().map(|(name, _)| *name).collect();
        format!("no such folio size; choose {}", names.join(", "))
    })
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
