//! Lists that a program can make long. An allocation of more than 64 KiB can fail (`super::heap`), so these report it.
//!
//! Their items may be small objects, which come out of the heap's reserve when memory is short. A list that
//! still grows then fails too, before there is nothing left for calls that make few objects.

use alloc::vec::Vec;

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
