//! Fills the root with the archive's files: names and attributes are copied, contents stay in the archive.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use super::dentry::Dentry;
use super::initramfs::{self, File};
use super::node::{Kind, New, NewKind, Node};
use super::special;
use super::tmpfs::{Contents, Inode};
use crate::errno::Errno;

/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

/// Makes a node for each entry. Missing directories on the way are made.
///
/// # Errors
/// [`Errno::ENOMEM`]; other entries that cannot be made are left out.
pub fn unpack(root: &Arc<Dentry>) -> Result<(), Errno> {
    // Entries with one number are names of one file. Its contents stand in one of them, mostly the last.
    let mut linked = BTreeMap::new();
    for file in initramfs::files().filter(|file| file.links > 1 && !file.bytes.is_empty()) {
        linked.insert(file.identity, file.id);
    }
    let mut names: BTreeMap<(u64, u64), Arc<dyn Node>> = BTreeMap::new();
    for file in initramfs::files() {
        let made = add(root, &file, &linked, &mut names);
        if made == Err(Errno::ENOMEM) {
            return made;
        }
    }
    Ok(())
}

fn add(
    root: &Arc<Dentry>,
    file: &File,
    linked: &BTreeMap<(u64, u64), quire::platform::FileId>,
    names: &mut BTreeMap<(u64, u64), Arc<dyn Node>>,
) -> Result<(), Errno> {
    let Some((directory, name)) = parent(root, file.name)? else { return Ok(()) };
    let has_more_names = file.links > 1 && file.mode & 0o170000 == 0o100000;
    if has_more_names && let Some(node) = names.get(&file.identity) {
        return directory.node().directory()?.link(&directory, name, node);
    }
    let contents = linked.get(&file.identity).filter(|_| has_more_names).copied().unwrap_or(file.id);
    let node = make(&directory, name, file, contents)?;
    if let Some(inode) = Inode::of(&node) {
        inode.restore(file.uid, file.gid, file.modified * 1_000_000_000);
    }
    if has_more_names {
        names.insert(file.identity, node);
    }
    Ok(())
}

fn make(
    directory: &Arc<Dentry>,
    name: &[u8],
    file: &File,
    contents: quire::platform::FileId,
) -> Result<Arc<dyn Node>, Errno> {
    let device = special::number(u64::from(file.device.0), u64::from(file.device.1));
    let mode = file.mode & PERMISSIONS;
    let target = directory.node().directory()?;
    let kind = match Kind::of_mode(file.mode, device).ok_or(Errno::EINVAL)? {
        Kind::Regular => {
            let parent = Inode::of(directory.node()).ok_or(Errno::EXDEV)?;
            let node: Arc<dyn Node> = Inode::linkable(parent.fs(), Contents::Archive(contents), mode);
            target.link(directory, name, &node)?;
            return Ok(node);
        }
        Kind::Symlink => NewKind::Symlink(file.bytes.into()),
        kind => NewKind::Other(kind),
    };
    match target.create(directory, name, New::own(kind, mode)) {
        Ok(place) => Ok(place.node().clone()),
        // A directory may stand in the archive behind its files.
        Err(Errno::EEXIST) => Ok(target.find(directory, name)?.node().clone()),
        Err(errno) => Err(errno),
    }
}

/// A directory and a name in it.
type Entry<'p> = (Arc<Dentry>, &'p [u8]);

/// The directory of a path, and the last name. `None` for the root itself.
fn parent<'p>(root: &Arc<Dentry>, path: &'p [u8]) -> Result<Option<Entry<'p>>, Errno> {
    let mut names =
        path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".").peekable();
    let mut at = root.clone();
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            return Ok(Some((at, name)));
        }
        let node = at.node().clone();
        let directory = node.directory()?;
        at = match directory.find(&at, name) {
            Ok(place) => place,
            Err(Errno::ENOENT) => {
                let new = New::own(NewKind::Other(Kind::Directory), 0o755);
                directory.create(&at, name, new)?
            }
            Err(errno) => return Err(errno),
        };
    }
    Ok(None)
}
