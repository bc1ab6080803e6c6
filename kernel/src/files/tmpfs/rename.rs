//! Renames within the tmpfs.

use alloc::sync::Arc;

use super::directory::{check_removable, is_directory};
use super::inode::Inode;
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::Rename;

/// Gives the entry to which `old_name` leads in `from` the name `name` in the directory at `to`.
///
/// # Errors
/// As `rename(2)`.
pub(super) fn rename(
    from: &Inode,
    (old_name, entry): (&[u8], &Arc<Dentry>),
    (to, name): (&Arc<Dentry>, &[u8]),
    how: Rename,
) -> Result<(), Errno> {
    let target = Inode::of(to.node()).filter(|inode| Arc::ptr_eq(&inode.fs, &from.fs)).ok_or(Errno::EXDEV)?;
    let tree = from.fs.tree.lock();
    target.check_alive()?;
    let (old, new) = (from.entries()?, target.entries()?);
    old.check(old_name, entry)?;
    if entry.is_mount_point() {
        return Err(Errno::EBUSY);
    }
    // A directory must not become a part of itself.
    if is_directory(entry) && to.is_below(entry) {
        return Err(Errno::EINVAL);
    }
    let there = new.find(name);
    let done = match (&there, how) {
        (Some(_), Rename::Keep) => Err(Errno::EEXIST),
        (None, Rename::Exchange) => Err(Errno::ENOENT),
        // Two names of one node, or twice the same: nothing happens.
        (Some(there), _) if Arc::ptr_eq(entry.node(), there.node()) => Ok(()),
        (Some(there), Rename::Exchange) => exchange(from, entry, target, there),
        (Some(there), Rename::Replace) => replace(from, entry, (target, to), there),
        (None, _) => {
            move_entry(from, entry, (target, to), name);
            Ok(())
        }
    };
    drop(tree);
    // A replaced node may go with its name, and with it the pages of a file.
    drop(there);
    done
}

fn inode_of(entry: &Dentry) -> Result<&Inode, Errno> {
    Inode::of(entry.node()).ok_or(Errno::EBUSY)
}

fn replace(
    from: &Inode,
    entry: &Arc<Dentry>,
    (target, to): (&Inode, &Arc<Dentry>),
    there: &Arc<Dentry>,
) -> Result<(), Errno> {
    // A directory above the entry is not empty.
    if entry.is_below(there) {
        return Err(Errno::ENOTEMPTY);
    }
    check_removable(there, inode_of(there)?, is_directory(entry))?;
    let name = there.name();
    there.set_removed();
    inode_of(there)?.count_name(target, false);
    move_entry(from, entry, (target, to), &name);
    Ok(())
}

/// Moves an entry. What has the name there loses its place.
fn move_entry(from: &Inode, entry: &Arc<Dentry>, (target, to): (&Inode, &Arc<Dentry>), name: &[u8]) {
    let (Ok(old), Ok(new), Ok(inode)) = (from.entries(), target.entries(), inode_of(entry)) else { return };
    let moved = old.take(&entry.name());
    let name: Arc<[u8]> = Arc::from(name);
    entry.set_place(to, name.clone());
    // The caller holds what was there.
    drop(new.put(name, entry.clone()));
    drop(moved);
    inode.note_change();
    from.count_entry(inode, false);
    target.count_entry(inode, true);
}

/// Exchanges two entries.
fn exchange(from: &Inode, entry: &Arc<Dentry>, target: &Inode, there: &Arc<Dentry>) -> Result<(), Errno> {
    if there.is_mount_point() {
        return Err(Errno::EBUSY);
    }
    if is_directory(there) && entry.is_below(there) {
        return Err(Errno::EINVAL);
    }
    let (Some(first), Some(second)) = (entry.parent(), there.parent()) else { return Err(Errno::EBUSY) };
    let (one, other) = (entry.name(), there.name());
    entry.set_place(&second, other.clone());
    there.set_place(&first, one.clone());
    drop(from.entries()?.put(one, there.clone()));
    drop(target.entries()?.put(other, entry.clone()));
    for (inode, old, new) in [(inode_of(entry)?, from, target), (inode_of(there)?, target, from)] {
        inode.note_change();
        old.count_entry(inode, false);
        new.count_entry(inode, true);
    }
    Ok(())
}
