//! Lists that a program can make long. An allocation of more than 64 KiB can fail (`super::heap`), so these report it.
//!
//! Their items may be small objects, which come out of the heap's reserve when memory is short. A list that
//! still grows then fails too, before there is nothing left for calls that make few objects.

use alloc::vec::Vec;
use core::ops::Deref;

use super::manager;
use crate::errno::Errno;

/// The items as a list.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn collect<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>, Errno> {
    let mut list = Vec::new();
    append(&mut list, items)?;
    Ok(list)
}

/// Adds the items at the end of a list.
///
/// # Errors
/// [`Errno::ENOMEM`]; some may have been added.
pub fn append<T>(list: &mut Vec<T>, items: impl IntoIterator<Item = T>) -> Result<(), Errno> {
    let items = items.into_iter();
    reserve(list, items.size_hint().0)?;
    for item in items {
        reserve(list, 1)?;
        list.push(item);
    }
    Ok(())
}

/// The parts one after the other.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn concat<'p>(parts: impl Iterator<Item = &'p [u8]> + Clone) -> Result<Vec<u8>, Errno> {
    let mut whole = Vec::new();
    reserve(&mut whole, parts.clone().map(<[u8]>::len).sum())?;
    parts.for_each(|part| whole.extend_from_slice(part));
    Ok(whole)
}

/// Makes room for more items.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), Errno> {
    let has_room = !manager::is_heap_short() && list.try_reserve(more).is_ok();
    has_room.then_some(()).ok_or(Errno::ENOMEM)
}

/// A list that is added to where nothing can fail. Each item's place is reserved before, where it still can.
pub struct ReservedList<T> {
    items: Vec<T>,
    /// Places that are reserved, and not filled yet.
    reserved: usize,
}

impl<T> ReservedList<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self { items: Vec::new(), reserved: 0 }
    }

    /// Reserves a place, for [`Self::push`] or [`Self::cancel`].
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn reserve_one(&mut self) -> Result<(), Errno> {
        reserve(&mut self.items, self.reserved + 1)?;
        self.reserved += 1;
        Ok(())
    }

    /// Makes the list so large that it can hold `count` items without further memory.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn reserve_for(&mut self, count: usize) -> Result<(), Errno> {
        let more = count.saturating_sub(self.items.len());
        reserve(&mut self.items, more)
    }

    /// Gives a reserved place back.
    pub fn cancel(&mut self) {
        self.reserved -= 1;
    }

    /// Fills a reserved place.
    pub fn push(&mut self, item: T) {
        self.reserved -= 1;
        self.push_within(item);
    }

    /// Adds an item to a list that [`Self::reserve_for`] has made large enough.
    pub fn push_within(&mut self, item: T) {
        debug_assert!(self.items.len() < self.items.capacity(), "nothing was reserved");
        self.items.push(item);
    }

    /// Removes the items for which the answer is no.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.items.retain(keep);
    }

    /// Turns the order round, for [`Self::pop`].
    pub fn reverse(&mut self) {
        self.items.reverse();
    }

    /// Takes the last item. The list stays as large as it is.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop()
    }
}

impl<T> Deref for ReservedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}
