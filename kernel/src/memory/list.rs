//! Lists that a program can make long. An allocation of more than 64 KiB can fail (`super::heap`), so these report it.

use alloc::vec::Vec;

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

/// Makes room for more items.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<(), Errno> {
    list.try_reserve(more).map_err(|_| Errno::ENOMEM)
}
