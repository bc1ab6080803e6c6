//! `/sys/kernel/mm/transparent_hugepage`: which folio sizes anonymous memory may use, for a user to choose.

use core::fmt::{self, Write};

use quire::addr::Order;
use quire::vm::{FolioPolicy, OrderPolicy};

/// The text names none of the choices (`EINVAL`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidChoice;

impl fmt::Display for InvalidChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such choice")
    }
}

impl core::error::Error for InvalidChoice {}

/// What one size may choose: as all sizes, or by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Choice {
    Inherit,
    Own(OrderPolicy),
}

/// The files `enabled` and `hugepages-*kB/enabled`. A change takes effect when the kernel gives [`Self::policy`] to
/// [`MemoryManager::set_folio_policy`](quire::manager::MemoryManager::set_folio_policy).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransparentHuge {
    all: OrderPolicy,
    sizes: [Choice; Self::ORDERS],
}

impl TransparentHuge {
    const ORDERS: usize = Order::BLOCK.get() as usize + 1;

    /// What Linux starts with where its builder chose `madvise`: 2 MiB for mappings that ask for it. Other sizes are
    /// off.
    pub const fn new() -> Self {
        let mut sizes = [Choice::Own(OrderPolicy::Never); Self::ORDERS];
        sizes[Order::BLOCK.get() as usize] = Choice::Inherit;
        Self { all: OrderPolicy::Madvise, sizes }
    }

    /// The sizes that can be chosen, in KiB: each has a folder `hugepages-*kB`. As in Linux, anonymous memory has no
    /// folios of 8 KiB to choose.
    pub fn sizes() -> impl Iterator<Item = (Order, u64)> {
        (2..=Order::BLOCK.get()).filter_map(Order::new).map(|order| (order, order.bytes() / 1024))
    }

    /// The machine's policy with these choices.
    pub fn policy(&self, before: FolioPolicy) -> FolioPolicy {
        let of = |order: Order| match self.sizes[usize::from(order.get())] {
            Choice::Inherit => self.all,
            Choice::Own(policy) => policy,
        };
        Self::sizes().fold(before, |policy, (order, _)| policy.with(order, of(order)))
    }

    /// Writes the text of `enabled`, or of a size's.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, out: &mut dyn Write, order: Option<Order>) -> fmt::Result {
        let chosen = match order {
            Some(order) => self.sizes[usize::from(order.get()).min(Self::ORDERS - 1)],
            None => Choice::Own(self.all),
        };
        let choices = CHOICES.iter().filter(|(_, choice)| order.is_some() || *choice != Choice::Inherit);
        for (at, (name, choice)) in choices.enumerate() {
            let gap = if at == 0 { "" } else { " " };
            if *choice == chosen { write!(out, "{gap}[{name}]")? } else { write!(out, "{gap}{name}")? }
        }
        out.write_str("\n")
    }

    /// Chooses what a text says, for all sizes or one.
    ///
    /// # Errors
    /// [`InvalidChoice`]; nothing has changed then.
    pub fn choose(&mut self, order: Option<Order>, text: &str) -> Result<(), InvalidChoice> {
        let known = CHOICES.iter().find(|(name, _)| *name == text.trim_end_matches('\n'));
        let choice = known.map(|(_, choice)| *choice).ok_or(InvalidChoice)?;
        match (order, choice) {
            (Some(order), choice) => {
                *self.sizes.get_mut(usize::from(order.get())).ok_or(InvalidChoice)? = choice;
            }
            (None, Choice::Own(policy)) => self.all = policy,
            (None, Choice::Inherit) => return Err(InvalidChoice),
        }
        Ok(())
    }
}

impl Default for TransparentHuge {
    fn default() -> Self {
        Self::new()
    }
}

/// In Linux's order.
const CHOICES: [(&str, Choice); 4] = [
    ("always", Choice::Own(OrderPolicy::Always)),
    ("inherit", Choice::Inherit),
    ("madvise", Choice::Own(OrderPolicy::Madvise)),
    ("never", Choice::Own(OrderPolicy::Never)),
];
