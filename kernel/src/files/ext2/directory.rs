//! Directories of an ext2 file system: names are found, made, linked, removed and changed, each in one hold of the
//! lock of its structures.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::core::{Core, now};
use super::entries::{Found, type_of};
use super::inode::Inode;
use super::layout::*;
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Directory, Entry, Kind, New, NewKind, Node, Rename};

/// The most names of one node, as in Linux.
const MOST_LINKS: u16 = 32000;
/// More places that are no longer in use are not kept.
const MOST_PLACES: usize = 64;

impl Inode {
    /// The place of an entry: the same one as long as anything refers to it.
    fn place(&self, here: &Arc<Dentry>, name: &[u8], node: Arc<dyn Node>) -> Arc<Dentry> {
        let mut places = self.places.lock();
        if let Some(place) = places.get(name).and_then(|place| place.upgrade()) {
            return place;
        }
        if places.len() > MOST_PLACES {
            places.retain(|_, place| place.strong_count() > 0);
        }
        let name: Arc<[u8]> = Arc::from(name);
        let place = Dentry::new(here, name.clone(), node);
        places.insert(name, Arc::downgrade(&place));
        place
    }

    /// The record of a name, which must still lead to this entry.
    fn found(&self, core: &mut Core, name: &[u8], entry: &Arc<Dentry>) -> Result<Found, Errno> {
        let place = self.places.lock().get(name).and_then(|place| place.upgrade());
        let found = place.filter(|place| Arc::ptr_eq(place, entry)).and(core.find(self.number, name)?);
        found.ok_or(Errno::ESTALE)
    }

    /// Fails for a node that has no more links left. A directory is one of the directory it is in.
    fn check_links(&self, core: &mut Core) -> Result<(), Errno> {
        let links = u16_at(core.inode(self.number)?, inode::LINKS);
        if links >= MOST_LINKS { Err(Errno::EMLINK) } else { Ok(()) }
    }

    /// Fails for a directory that was removed, and for a name that exists.
    fn check_new(&self, core: &mut Core, name: &[u8]) -> Result<(), Errno> {
        if self.is_nameless() {
            return Err(Errno::ENOENT);
        }
        if core.find(self.number, name)?.is_some() { Err(Errno::EEXIST) } else { Ok(()) }
    }

    /// Gives a new inode its contents and its name.
    fn fill_new(&self, core: &mut Core, number: u32, name: &[u8], new: &New) -> Result<(), Errno> {
        let kind = kind_of(new);
        let inode = core.inode_mut(number)?;
        put_u16(inode, inode::MODE, (kind.mode_bits() | new.mode) as u16);
        for at in [inode::ACCESSED, inode::CHANGED, inode::MODIFIED] {
            put_u32(inode, at, now());
        }
        put_u16(inode, inode::LINKS, 1);
        put_id(inode, inode::USER, new.owner.0);
        put_id(inode, inode::GROUP, new.owner.1);
        match &new.kind {
            NewKind::Symlink(target) => write_link(core, number, target)?,
            NewKind::Other(Kind::Directory) => {
                put_u16(core.inode_mut(number)?, inode::LINKS, 2);
                core.make_directory(number, self.number)?;
            }
            NewKind::Other(Kind::CharDevice(device) | Kind::BlockDevice(device)) => {
                // Numbers of more than 16 bits stand in the second place.
                let place = if *device <= 0xffff { inode::BLOCKS } else { inode::BLOCKS + 4 };
                put_u32(core.inode_mut(number)?, place, *device as u32);
            }
            NewKind::Other(_) => {}
        }
        core.add_entry(self.number, (name, number, kind))?;
        if kind == Kind::Directory {
            core.add_links(self.number, 1)?;
        }
        Ok(())
    }

    /// A name of a node goes, which may have been its last.
    fn drop_name(&self, core: &mut Core, node: &Inode) -> Result<(), Errno> {
        let links = if node.kind() == Kind::Directory {
            core.add_links(self.number, -1)?;
            core.add_links(node.number, -2)?
        } else {
            core.add_links(node.number, -1)?
        };
        if links == 0 {
            node.set_nameless();
        }
        Ok(())
    }

    /// Fails for an entry that must not go.
    fn check_removable(&self, core: &mut Core, node: &Inode, directory: bool) -> Result<(), Errno> {
        match (node.kind() == Kind::Directory, directory) {
            (true, false) => Err(Errno::EISDIR),
            (false, true) => Err(Errno::ENOTDIR),
            (true, true) if !core.is_empty(node.number)? => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        }
    }
}

fn kind_of(new: &New) -> Kind {
    match new.kind {
        NewKind::Symlink(_) => Kind::Symlink,
        NewKind::Other(kind) => kind,
    }
}

/// Stores where a symbolic link leads: in the inode, or in a block.
fn write_link(core: &mut Core, number: u32, target: &[u8]) -> Result<(), Errno> {
    put_u32(core.inode_mut(number)?, inode::SIZE, target.len() as u32);
    if target.len() < inode::BLOCKS_END - inode::BLOCKS {
        core.inode_mut(number)?[inode::BLOCKS..][..target.len()].copy_from_slice(target);
        return Ok(());
    }
    if target.len() > core.geometry.block_bytes {
        return Err(Errno::ENAMETOOLONG);
    }
    let near = core.near(number);
    let block = core.block_of(number, 0, Some(near))?.ok_or(Errno::EIO)?;
    core.buffers.fresh(block)?[..target.len()].copy_from_slice(target);
    Ok(())
}

/// An entry's kind by its type's number; devices have no number here.
fn kind_by_type(number: u8) -> Kind {
    let kinds = [
        Kind::Regular,
        Kind::Directory,
        Kind::CharDevice(0),
        Kind::BlockDevice(0),
        Kind::Fifo,
        Kind::Socket,
        Kind::Symlink,
    ];
    kinds.into_iter().find(|kind| type_of(*kind) == number).unwrap_or(Kind::Anonymous)
}

impl Directory for Inode {
    fn find(&self, here: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        if let Some(place) = self.places.lock().get(name).and_then(|place| place.upgrade()) {
            return Ok(place);
        }
        let mut core = self.fs.core.lock();
        let found = core.find(self.number, name)?.ok_or(Errno::ENOENT)?;
        let node = self.fs.inode(&mut core, found.inode)?;
        Ok(self.place(here, name, node))
    }

    fn list(&self) -> Result<Vec<Entry>, Errno> {
        let mut list = Vec::new();
        let mut is_short = false;
        self.fs.core.lock().each_entry(self.number, |number, name, kind| {
            is_short |= crate::memory::list::reserve(&mut list, 1).is_err();
            if !is_short {
                list.push(Entry { name: Arc::from(name), number: number.into(), kind: kind_by_type(kind) });
            }
        })?;
        if is_short { Err(Errno::ENOMEM) } else { Ok(list) }
    }

    fn create(&self, here: &Arc<Dentry>, name: &[u8], new: New) -> Result<Arc<Dentry>, Errno> {
        let kind = kind_of(&new);
        if matches!(kind, Kind::Fifo | Kind::Socket | Kind::Anonymous) {
            return Err(Errno::EPERM);
        }
        // What nothing uses any more is free.
        let _ = self.fs.collect(false);
        let mut core = self.fs.change()?;
        self.check_new(&mut core, name)?;
        if kind == Kind::Directory {
            self.check_links(&mut core)?;
        }
        let number = core.take_inode(self.number, kind == Kind::Directory)?;
        if let Err(errno) = self.fill_new(&mut core, number, name, &new) {
            if core.has_blocks(number, kind)? {
                core.cut(number, 0)?;
            }
            put_u16(core.inode_mut(number)?, inode::LINKS, 0);
            core.free_inode(number, kind == Kind::Directory)?;
            return Err(errno);
        }
        let node = self.fs.inode(&mut core, number)?;
        Ok(self.place(here, name, node))
    }

    fn link(&self, _here: &Arc<Dentry>, name: &[u8], node: &Arc<dyn Node>) -> Result<(), Errno> {
        let node = Inode::of(node).filter(|node| Arc::ptr_eq(&node.fs, &self.fs)).ok_or(Errno::EXDEV)?;
        if node.kind() == Kind::Directory {
            return Err(Errno::EPERM);
        }
        self.fs.with_space(|| self.try_link(name, node))
    }

    fn remove(&self, name: &[u8], entry: &Arc<Dentry>, directory: bool) -> Result<(), Errno> {
        let mut core = self.fs.change()?;
        let node = Inode::of(entry.node()).ok_or(Errno::EBUSY)?;
        let found = self.found(&mut core, name, entry)?;
        if entry.is_mount_point() {
            return Err(Errno::EBUSY);
        }
        self.check_removable(&mut core, node, directory)?;
        core.remove_entry(self.number, &found)?;
        self.drop_name(&mut core, node)?;
        entry.set_removed();
        self.places.lock().remove(name);
        Ok(())
    }

    fn rename(
        &self,
        old: (&[u8], &Arc<Dentry>),
        (to, name): (&Arc<Dentry>, &[u8]),
        how: Rename,
    ) -> Result<(), Errno> {
        let target =
            Inode::of(to.node()).filter(|node| Arc::ptr_eq(&node.fs, &self.fs)).ok_or(Errno::EXDEV)?;
        if how == Rename::Exchange {
            return Err(Errno::EINVAL);
        }
        self.fs.with_space(|| self.try_rename(old, (target, to), name, how))
    }
}

impl Inode {
    fn try_link(&self, name: &[u8], node: &Inode) -> Result<(), Errno> {
        let mut core = self.fs.change()?;
        self.check_new(&mut core, name)?;
        if node.is_nameless() {
            return Err(Errno::ENOENT);
        }
        node.check_links(&mut core)?;
        core.add_entry(self.number, (name, node.number, node.kind()))?;
        core.add_links(node.number, 1).map(drop)
    }

    fn try_rename(
        &self,
        (old_name, entry): (&[u8], &Arc<Dentry>),
        (target, to): (&Inode, &Arc<Dentry>),
        name: &[u8],
        how: Rename,
    ) -> Result<(), Errno> {
        let mut core = self.fs.change()?;
        let node = Inode::of(entry.node()).ok_or(Errno::EBUSY)?;
        self.found(&mut core, old_name, entry)?;
        let is_directory = node.kind() == Kind::Directory;
        if entry.is_mount_point() {
            return Err(Errno::EBUSY);
        }
        if target.is_nameless() {
            return Err(Errno::ENOENT);
        }
        if is_directory && to.is_below(entry) {
            return Err(Errno::EINVAL);
        }
        if is_directory && self.number != target.number {
            target.check_links(&mut core)?;
        }
        let replaced = target.replace(&mut core, (to, name), (entry, node), how)?;
        if replaced.is_none_or(|replaced| replaced) {
            // The new name is there. It may have made the old one move.
            let found = core.find(self.number, old_name)?.ok_or(Errno::EIO)?;
            core.remove_entry(self.number, &found)?;
        } else {
            return Ok(());
        }
        if is_directory && self.number != target.number {
            let above = core.find(node.number, b"..")?.ok_or(Errno::EIO)?;
            core.set_entry(node.number, &above, target.number, Kind::Directory)?;
            core.add_links(self.number, -1)?;
            core.add_links(target.number, 1)?;
        }
        core.add_links(node.number, 0)?;
        let name: Arc<[u8]> = Arc::from(name);
        self.places.lock().remove(old_name);
        entry.set_place(to, name.clone());
        target.places.lock().insert(name, Arc::downgrade(entry));
        // Only now: a task that makes the old name must not find this entry there.
        drop(core);
        Ok(())
    }

    /// Gives the entry `new` one more name here, in place of what has it. `None`: there was nothing; `Some(false)`: it
    /// was the same node, and nothing is to be done.
    fn replace(
        &self,
        core: &mut Core,
        (here, name): (&Arc<Dentry>, &[u8]),
        (entry, node): (&Arc<Dentry>, &Inode),
        how: Rename,
    ) -> Result<Option<bool>, Errno> {
        let Some(there) = core.find(self.number, name)? else {
            core.add_entry(self.number, (name, node.number, node.kind()))?;
            return Ok(None);
        };
        if how == Rename::Keep {
            return Err(Errno::EEXIST);
        }
        if there.inode == node.number {
            return Ok(Some(false));
        }
        let old = self.fs.inode(core, there.inode)?;
        let place = self.place(here, name, old.clone());
        if place.is_mount_point() {
            return Err(Errno::EBUSY);
        }
        if entry.is_below(&place) {
            return Err(Errno::ENOTEMPTY);
        }
        self.check_removable(core, &old, node.kind() == Kind::Directory)?;
        core.set_entry(self.number, &there, node.number, node.kind())?;
        self.drop_name(core, &old)?;
        place.set_removed();
        Ok(Some(true))
    }
}
